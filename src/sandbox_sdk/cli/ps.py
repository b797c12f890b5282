"""`sandbox ps`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Url


def ps(
    thread: Annotated[
        str | None, typer.Argument(metavar="[T]", help="A thread_id: its commands instead.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """List the live sessions, or the commands of one."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_sessions(caller) if thread is None else _commands(caller, thread))


async def _sessions(caller: Caller) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.sessions()
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
        return
    heads = ("THREAD", "STATE", "IDLE", "EXPIRES", "GENERATION", "RUNTIME", "WORKER")
    caller.table(
        heads,
        (
            (
                each.thread_id,
                each.state,
                span(each.idle_s),
                f"{each.expires_at.astimezone():%H:%M:%S}",
                str(each.generation),
                each.runtime,
                each.worker,
            )
            for each in found.sessions
        ),
    )
    if found.unreachable:
        silent = ", ".join(found.unreachable)
        caller.complain(f"no answer from {silent}: the sessions there are not in this list")


async def _commands(caller: Caller, thread: str) -> None:
    async with caller.client(thread) as sandbox:
        found = await sandbox.commands()
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
        return
    caller.table(
        ("COMMAND", "STATE", "STARTED", "OUTPUT"),
        (
            (
                each.command_id,
                "running" if each.running else f"exit {each.exit_code}",
                f"{span(each.age_s)} ago",
                f"{each.output_bytes} bytes",
            )
            for each in found.commands
        ),
    )


def span(seconds: float) -> str:
    """A duration, as long as a word."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds / 60:.0f}min"
    return f"{seconds / 3600:.1f}h"
