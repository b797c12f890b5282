"""`sandbox logs`: what a command has written."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Thread, Url
from sandbox_sdk.protocol.errors import NotFound

if TYPE_CHECKING:
    from sandbox_sdk.process import AsyncProcess


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
                raise NotFound(f"thread {thread} has run no command yet")
            command_id = known[-1].command_id
        process = await sandbox.process(command_id)
        await (_follow(caller, process) if follow else _print(caller, process))


async def _follow(caller: Caller, process: AsyncProcess) -> None:
    from sandbox_sdk.cli.follow import show_json, show_text

    show = show_json if caller.json else show_text
    async with contextlib.aclosing(process.stream()) as events:
        async for event in events:
            show(event)


async def _print(caller: Caller, process: AsyncProcess) -> None:
    from sandbox_sdk.cli.follow import write

    result = await process.result()
    if caller.json:
        caller.tell(result.model_dump(mode="json"))
        return
    write(result.stdout, to="stdout")
    write(result.stderr, to="stderr")
