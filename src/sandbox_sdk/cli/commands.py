"""`sandbox logs` and `kill`: commands that were started before."""

from __future__ import annotations

import contextlib
from typing import Annotated, cast, get_args

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.follow import show_hint, shown_as, write
from sandbox_sdk.cli.options import Thread
from sandbox_sdk.protocol.errors import NotFound
from sandbox_sdk.protocol.models import SignalName


async def logs(
    thread: Thread,
    command_id: Annotated[
        str | None, typer.Argument(help="As `sandbox ps T` lists it; without it, the newest.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the command ends.")
    ] = False,
    caller: Caller,
) -> None:
    """Print the output of a command, as far as it is kept.

    Ctrl-C ends --follow, not the command. With --json, one document; with --follow too, a line of
    JSON for every event.
    """
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
        caller.tell(result)
    else:
        write(result.stdout, to="stdout")
        write(result.stderr, to="stderr")
        show_hint(result.hint)


async def kill(
    thread: Thread,
    command_id: Annotated[str, typer.Argument(help="As `sandbox ps T` lists it.")],
    *,
    signal: Annotated[
        str, typer.Option("--signal", "-s", help="KILL ends everything the command has started.")
    ] = "KILL",
    caller: Caller,
) -> None:
    """Send a signal to a command; by itself one that ends it."""
    name = signal.upper().removeprefix("SIG")
    if name not in get_args(SignalName):
        known = ", ".join(get_args(SignalName))
        raise typer.BadParameter(f"unknown signal {name!r}; use {known}", param_hint="--signal")
    async with caller.client(thread) as sandbox:
        process = await sandbox.process(command_id)
        caller.say(await process.signal(cast(SignalName, name)))
