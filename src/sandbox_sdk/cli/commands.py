"""`sandbox logs` and `kill`: commands that were started before."""

from __future__ import annotations

import contextlib
from typing import Annotated, cast, get_args

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.follow import show_hint, shown_as, write
from sandbox_sdk.cli.options import ApiKey, Json, Thread, Url
from sandbox_sdk.protocol.errors import NotFound
from sandbox_sdk.protocol.models import SignalName


def logs(
    thread: Thread,
    command_id: Annotated[
        str | None, typer.Argument(help="As `sandbox ps T` lists it; without it, the newest.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the command ends.")
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Print the output of a command, as far as it is kept.

    Ctrl-C ends --follow, not the command. With --json, one document; with --follow too, a line of
    JSON for every event.
    """
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_logs(caller, thread, command_id, follow=follow))


async def _logs(caller: Caller, thread: str, command_id: str | None, *, follow: bool) -> None:
    async with caller.client(thread) as sandbox:
        if command_id is None:
            known = (await sandbox.commands()).commands
            if not known:
                raise NotFound(f"thread {thread} has run no command yet; `sandbox run` runs one")
            command_id = known[-1].command_id
        process = await sandbox.process(command_id)
        if follow:
            show = shown_as(json=caller.json)
            async with contextlib.aclosing(process.stream()) as events:
                async for event in events:
                    show(event)
            return
        result = await process.result()
    if caller.json:
        caller.tell(result.model_dump(mode="json"))
    else:
        write(result.stdout, to="stdout")
        write(result.stderr, to="stderr")
        show_hint(result.hint)


def kill(
    thread: Thread,
    command_id: Annotated[str, typer.Argument(help="As `sandbox ps T` lists it.")],
    signal: Annotated[
        str, typer.Option("--signal", "-s", help="KILL ends everything the command has started.")
    ] = "KILL",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Send a signal to a command; by itself one that ends it."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_kill(caller, thread, command_id, signal.upper().removeprefix("SIG")))


async def _kill(caller: Caller, thread: str, command_id: str, signal: str) -> None:
    if signal not in get_args(SignalName):
        known = ", ".join(get_args(SignalName))
        raise typer.BadParameter(f"unknown signal {signal!r}; use {known}", param_hint="--signal")
    async with caller.client(thread) as sandbox:
        process = await sandbox.process(command_id)
        info = await process.signal(cast(SignalName, signal))
    if caller.json:
        caller.tell(info.model_dump(mode="json"))
