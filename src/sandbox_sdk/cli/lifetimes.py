"""`sandbox pause`, `unpause` and `lifetime`: how long a session lasts, or stands still."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.protocol.models import SessionSummary
from sandbox_sdk.units import seconds

Thread = Annotated[str, typer.Argument(metavar="T", help="A thread_id.")]


def pause(thread: Thread, url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Stop all that runs in a session until it is used again, for 24 hours at most."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_changed(caller, thread, lambda sandbox: sandbox.pause()))


def unpause(thread: Thread, url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Let what runs in a paused session go on."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_changed(caller, thread, lambda sandbox: sandbox.unpause()))


def lifetime(
    thread: Thread,
    lasts: Annotated[
        str, typer.Argument(metavar="DURATION", help="From now, such as 90s, 10m or 2h; 0: none.")
    ],
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """End a session so long from now, used or not, with what runs in it."""
    try:
        lifetime_s = seconds(lasts)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="DURATION") from None
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_changed(caller, thread, lambda sandbox: sandbox.set_lifetime(lifetime_s)))


async def _changed(
    caller: Caller,
    thread: str,
    change: Callable[[AsyncSandboxClient], Awaitable[SessionSummary]],
) -> None:
    async with caller.client(thread) as sandbox:
        session = await change(sandbox)
    if caller.json:
        caller.tell(session.model_dump(mode="json"))
        return
    ends = "when it is idle" if session.end_at is None else f"{session.end_at.astimezone():%F %T}"
    print(f"{session.thread_id}: {session.state}, ends {ends}")
