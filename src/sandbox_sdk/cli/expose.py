"""`sandbox expose`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Thread, Url
from sandbox_sdk.protocol.models import Preview, Target

_HEADS = ("PORT", "PUBLIC", "SINCE", "URL")


def expose(
    thread: Thread,
    port: Annotated[
        int | None,
        typer.Argument(
            min=1, max=65535, help="Of the sandbox. Left out: list those that are exposed."
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Without a token, for all who know the URL.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the preview.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Print a URL at which a browser sees what listens at a port of a sandbox.

    It has a token, and ends with the session or with `--stop`.
    """
    if (port is None and (public or stop)) or (public and stop):
        raise typer.BadParameter("--public and --stop need a port, and exclude each other")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    target = Target(thread_id=thread)
    if port is None:
        caller.run(_list(caller, target))
    elif stop:
        caller.run(_stop(caller, target, port))
    else:
        caller.run(_expose(caller, target, port, public=public))


async def _expose(caller: Caller, target: Target, port: int, *, public: bool) -> None:
    async with caller.sandboxes() as sandboxes:
        made = await sandboxes.expose(target, port, public=public)
        if caller.json:
            caller.tell(made.to_dict())
        else:
            print(made.url, flush=True)
        if sandboxes.same_machine:
            # This program serves it: there is no server.
            caller.complain("the preview lasts until Ctrl-C")
            await asyncio.Event().wait()


async def _stop(caller: Caller, target: Target, port: int) -> None:
    async with caller.sandboxes() as sandboxes:
        ended = await sandboxes.unexpose(target, port)
    if caller.json:
        caller.tell(ended.to_dict())


async def _list(caller: Caller, target: Target) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.previews(target)
    if caller.json:
        caller.tell(found.to_dict())
        return
    caller.table(_HEADS, map(_row, found.previews))


def _row(each: Preview) -> tuple[str, ...]:
    since = f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return str(each.port), "yes" if each.public else "no", since, each.url
