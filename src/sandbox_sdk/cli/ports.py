"""`sandbox forward` and `expose`: ports of a sandbox, for programs here and for browsers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import Thread
from sandbox_sdk.protocol.models import Preview, Target

_PORTS = 65535
_HEADS = ("PORT", "PUBLIC", "SINCE", "URL")


async def forward(
    thread: Thread,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]PORT…",
            help="A port of the sandbox, or the path of a unix socket in it; before it, the port"
            " of this machine, by default the same, and 0 for any that is free.",
        ),
    ],
    *,
    host: Annotated[
        str, typer.Option("--host", help="The address of this machine to listen at.")
    ] = "127.0.0.1",
    caller: Caller,
) -> None:
    """Make ports of a sandbox ports of this machine, until Ctrl-C.

    Any program can connect to them: a browser, curl, a database client.
    """
    pairs = [_parsed(each) for each in ports]
    async with caller.client(thread) as sandbox, contextlib.AsyncExitStack() as stack:
        await sandbox.session()
        for local, wanted in pairs:
            opened = sandbox.forward(wanted, local_port=local, host=host)
            forward = await stack.enter_async_context(opened)
            print(f"{forward.address} leads to {wanted} of {thread}", flush=True)
        await asyncio.Event().wait()


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


async def expose(
    thread: Thread,
    port: Annotated[
        int | None,
        typer.Argument(
            min=1, max=65535, help="Of the sandbox. Left out: list those that are exposed."
        ),
    ] = None,
    *,
    public: Annotated[
        bool, typer.Option("--public", help="Without a token, for all who know the URL.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the preview.")] = False,
    caller: Caller,
) -> None:
    """Print a URL at which a browser sees what listens at a port of a sandbox.

    It has a token, and ends with the session or with `--stop`.
    """
    if (port is None and (public or stop)) or (public and stop):
        raise typer.BadParameter("--public and --stop need a port, and exclude each other")
    target = Target(thread_id=thread)
    async with caller.sandboxes() as sandboxes:
        if port is None:
            found = await sandboxes.previews(target)
            caller.say_table(found, _HEADS, map(_row, found.previews))
            return
        if stop:
            caller.say(await sandboxes.unexpose(target, port))
            return
        made = await sandboxes.expose(target, port, public=public)
        caller.say(made, made.url)
        if sandboxes.same_machine:
            # This program serves it: there is no server.
            caller.complain("the preview lasts until Ctrl-C")
            await asyncio.Event().wait()


def _row(each: Preview) -> tuple[str, ...]:
    since = f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return str(each.port), "yes" if each.public else "no", since, each.url
