"""`sandbox kill`: a signal to a command."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Thread, Url


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
    from sandbox_sdk.protocol.models import SignalName

    if signal not in get_args(SignalName):
        known = ", ".join(get_args(SignalName))
        raise typer.BadParameter(f"no signal {signal!r}; there is: {known}", param_hint="--signal")
    async with caller.client(thread) as sandbox:
        process = await sandbox.process(command_id)
        info = await process.signal(cast(SignalName, signal))
    if caller.json:
        caller.tell(info.model_dump(mode="json"))
