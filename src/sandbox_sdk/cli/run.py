"""`sandbox run`: one command, its output as it comes, its exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import INTERRUPTED, Caller
from sandbox_sdk.cli.follow import run_command, shown_as
from sandbox_sdk.cli.options import EnvPairs, NewSandbox, duration_option, env_of
from sandbox_sdk.cli.terminal import refuse_waiting
from sandbox_sdk.options import CommandOptions


async def run(
    command: Annotated[str, typer.Argument(help="Bash source.")],
    *,
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Whose sandbox; without it, one for this run alone."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="LOCAL[:PATH]", help="A file to put there first; repeatable."
        ),
    ] = None,
    timeout: Annotated[  # noqa: ASYNC109
        float | None,
        duration_option(
            "When it is ended: 90s, 5m, or seconds; 30 unless the server is set up otherwise."
        ),
    ] = None,
    env: EnvPairs = None,
    cwd: Annotated[str | None, typer.Option(help="Where to run it.")] = None,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", "-n", help="Do not pass on what is piped in.")
    ] = False,
    new: NewSandbox,
    artifacts: Annotated[
        bool,
        typer.Option(
            "--artifacts", help="Keep the files it makes or changes; see `sandbox artifacts`."
        ),
    ] = False,
    caller: Caller,
) -> int:
    """Run a command and leave with its exit code.

    Its stdout and stderr come as they are written; what is piped in becomes its stdin. Ctrl-C kills
    it with everything it has started. It has no terminal, so editors such as vim are refused: use
    `sandbox cp`, sed or a here-document. With --json, a line of JSON for every event. Environment,
    provider, limits, network and volumes are those of a new sandbox; one that is there keeps its
    own, and a line names them.
    """
    options: CommandOptions = {"timeout": timeout, "env": env_of(env)}
    if cwd is not None:
        options["cwd"] = cwd
    if artifacts:
        options["artifacts"] = True
    files = [split_file(each) for each in file or ()]
    client = caller.client(thread, new)
    refuse_waiting(command)  # Before a box is made for it.
    interrupted = on_interrupt()
    async with client as sandbox:
        for local, path in files:
            await sandbox.upload_file(local, path)
        stdin = None if no_stdin else _stdin()
        show = shown_as(json=caller.json)
        exit_ = await run_command(
            sandbox, command, show=show, interrupted=interrupted, input_fd=stdin, **options
        )
    return INTERRUPTED if interrupted.is_set() else exit_.exit_code


def on_interrupt() -> asyncio.Event:
    """An event that the first Ctrl-C sets. The second cancels this task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    interrupted = asyncio.Event()

    def handle() -> None:
        if interrupted.is_set() and task is not None:
            task.cancel()
        interrupted.set()

    loop.add_signal_handler(signal.SIGINT, handle)
    return interrupted


def split_file(text: str) -> tuple[str, str]:
    """LOCAL[:PATH]. A local name with a colon in it is a file that is there."""
    local, colon, path = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, Path(text).name
    return local, path or Path(local).name


def _stdin() -> int | None:
    """The descriptor to pass on: none if stdin is a terminal, or closed."""
    try:
        return None if sys.stdin is None or os.isatty(0) else 0
    except OSError:
        return None
