"""All subcommands, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from sandbox_sdk import plugins
from sandbox_sdk.cli import (
    checkpoints,
    code,
    commands,
    copy,
    history,
    kept,
    mcp,
    mounts,
    ports,
    run,
    sessions,
    shell,
    top,
    usage,
    watching,
)
from sandbox_sdk.cli.caller import subcommand

app = typer.Typer(
    name="sandbox",
    help="Sandboxes in which AI agents run commands and keep files.\n\n"
    "Talks to the server at SANDBOX_URL; without one, boxes are made by this process itself.",
    epilog="Exit codes: the command's own for run and shell; 1 a check failed; 2 wrong usage;"
    " 125 the sandbox failed; 130 Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS: list[Callable[..., Any]] = [
    run.run,
    code.code,
    shell.shell,
    sessions.ps,
    top.top,
    commands.logs,
    commands.kill,
    sessions.rm,
    sessions.pause,
    sessions.unpause,
    sessions.lifetime,
    sessions.egress,
    copy.cp,
    watching.watch,
    mounts.diff,
    mounts.apply,
    kept.artifacts,
    checkpoints.checkpoint,
    checkpoints.checkpoints,
    checkpoints.rewind,
    checkpoints.fork,
    history.history,
    history.undo,
    kept.volumes,
    usage.usage,
    watching.events,
    ports.forward,
    ports.expose,
    sessions.health,
    mcp.mcp,
]
_WITHOUT: dict[Callable[..., Any], tuple[str, ...]] = {
    shell.shell: ("environment",),
    ports.forward: ("json",),
    mcp.mcp: ("json",),
}
for _command in _COMMANDS:
    app.command()(subcommand(_command, without=_WITHOUT.get(_command, ())))
for _plugin in plugins.own(plugins.COMMANDS):
    _plugin.load()(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("agent-sandbox"))
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
