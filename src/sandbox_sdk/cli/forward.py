"""`sandbox forward`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Thread, Url

_PORTS = 65535


def forward(
    thread: Thread,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]PORT…",
            help="A port of the sandbox, or the path of a unix socket in it; before it, the port"
            " of this machine, by default the same, and 0 for any that is free.",
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", help="The address of this machine to listen at.")
    ] = "127.0.0.1",
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Make ports of a sandbox ports of this machine, until Ctrl-C.

    Any program can connect to them: a browser, curl, a database client.
    """
    caller = Caller(url=url, api_key=api_key)
    caller.run(_forward(caller, thread, [_parsed(each) for each in ports], host))


def _parsed(text: str) -> tuple[int, int | str]:
    """The port here, and the port or path in the sandbox. Raises BadParameter."""
    local, colon, wanted = text.rpartition(":")
    if "/" in wanted:
        if not colon:
            raise typer.BadParameter(f"{text}: a socket needs a port of this machine: 0:{text}")
        return _number(local, text, least=0), wanted
    port = _number(wanted, text, least=1)
    return (_number(local, text, least=0) if colon else port), port


def _number(text: str, whole: str, *, least: int) -> int:
    if text.isascii() and text.isdecimal() and least <= int(text) <= _PORTS:
        return int(text)
    raise typer.BadParameter(f"{whole!r}: {text!r} is not a port between {least} and {_PORTS}")


async def _forward(
    caller: Caller, thread: str, pairs: list[tuple[int, int | str]], host: str
) -> None:
    async with caller.client(thread) as sandbox, contextlib.AsyncExitStack() as stack:
        await sandbox.session()
        for local, wanted in pairs:
            opened = sandbox.forward(wanted, local_port=local, host=host)
            forward = await stack.enter_async_context(opened)
            print(f"{forward.address} leads to {wanted} of {thread}", flush=True)
        await asyncio.Event().wait()
