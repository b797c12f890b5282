"""`sandbox events`."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.models import Happening, HappeningKind

_KINDS: tuple[str, ...] = get_args(HappeningKind)


def events(
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="T", help="Of this thread alone.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help=f"One of {', '.join(_KINDS)}.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="From this event on; empty: all that is kept."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Tell what happens, as it happens: sessions, commands that end, checkpoints, limits.

    Without an end: Ctrl-C stops it. With --json, a line for every event, with the id that --after
    takes.
    """
    if kind is not None and kind not in _KINDS:
        raise typer.BadParameter(f"--kind is one of {', '.join(_KINDS)}")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_events(caller, thread, kind, after, count))  # type: ignore[arg-type]


async def _events(
    caller: Caller,
    thread: str | None,
    kind: HappeningKind | None,
    after: str | None,
    count: int | None,
) -> None:
    async with caller.sandboxes() as sandboxes:
        found = sandboxes.watch(thread_id=thread, kind=kind, after=after)
        await caller.follow(found, _line, count)


def _line(event: Happening) -> str:
    about = " ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    at = event.at.astimezone().strftime("%H:%M:%S")
    return escaped(f"{at} {event.kind:<18} {event.thread_id or '-'} {about}")
