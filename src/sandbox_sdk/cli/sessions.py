"""`sandbox ps`, `rm` and `health`: what there is, its end, and the server that has it."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from sandbox_sdk.cli.caller import SANDBOX_FAILED, Caller, error_body
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import SessionInfo, SessionSummary

_HEADS = ("THREAD", "STATE", "IDLE", "EXPIRES", "GENERATION", "RUNTIME", "WORKER")


def ps(
    thread: Annotated[
        str | None, typer.Argument(metavar="[T]", help="A thread_id: the same as --thread T.")
    ] = None,
    of_thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", metavar="T", help="One thread: its session and commands."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="NAME=VALUE", help="Only those that have this. May be repeated."
        ),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """List the live sessions, or of one thread its session and its commands.

    IDLE is the time since the last command ended or file moved, EXPIRES when the session ends if
    nothing more is done. A COMMAND is what `sandbox logs` and `sandbox kill` take.
    """
    if thread is not None and of_thread not in (None, thread):
        raise typer.BadParameter(f"give one thread, not {thread!r} and {of_thread!r}")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    wanted = of_thread if thread is None else thread
    pairs = [text.partition("=")[::2] for text in metadata or ()]
    caller.run(_list_sessions(caller, pairs) if wanted is None else _list_commands(caller, wanted))


def _row(session: SessionSummary | SessionInfo) -> tuple[str, ...]:
    return (
        session.thread_id,
        session.state,
        span(session.idle_s),
        f"{session.expires_at.astimezone():%H:%M:%S}",
        str(session.generation),
        session.runtime if session.environment is None else _named(session),
        session.worker,
    )


def _named(session: SessionSummary | SessionInfo) -> str:
    return f"{session.runtime} ({session.environment})"


async def _list_sessions(caller: Caller, metadata: list[tuple[str, str]]) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.sessions(metadata=urlencode(metadata) or None)
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
        return
    caller.table(_HEADS, map(_row, found.sessions))
    if found.unreachable:
        silent = ", ".join(found.unreachable)
        caller.complain(f"no answer from {silent}: the sessions there are not in this list")


async def _list_commands(caller: Caller, thread: str) -> None:
    async with caller.client(thread) as sandbox:
        session = await sandbox.session()
        found = await sandbox.commands()
    if caller.json:
        document = {"session": session.model_dump(mode="json"), **found.model_dump(mode="json")}
        caller.tell(document)
        return
    caller.table(_HEADS, [_row(session)])
    print()
    rows = [
        (
            each.command_id,
            "running" if each.running else f"exit {each.exit_code}",
            f"{span(each.age_s)} ago",
            f"{each.output_bytes} bytes",
        )
        for each in found.commands
    ]
    caller.table(("COMMAND", "STATE", "STARTED", "OUTPUT"), rows)


def span(seconds: float) -> str:
    """A duration in its largest unit."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds / 60:.0f}min"
    return f"{seconds / 3600:.1f}h"


def rm(
    threads: Annotated[list[str] | None, typer.Argument(metavar="T...", help="Thread_ids.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that `sandbox ps` lists.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """End the sessions of threads, with their files. One that fails does not keep the others."""
    if every == bool(threads):
        raise typer.BadParameter("name the threads to end, or pass --all", param_hint="T...")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_rm(caller, threads))


async def _rm(caller: Caller, threads: list[str] | None) -> int:
    outcomes: list[dict[str, Any]] = []
    if threads is None:
        async with caller.sandboxes() as sandboxes:
            threads = [each.thread_id for each in (await sandboxes.sessions()).sessions]
    for thread in threads:
        try:
            async with caller.client(thread) as sandbox:
                result = await sandbox.cleanup()
            outcomes.append({"thread_id": thread, "status": result.status})
        except SandboxError as exc:
            outcomes.append({"thread_id": thread, "error": error_body(exc)})
            if not caller.json:
                caller.complain(f"{thread}: {exc.message}")
    if caller.json:
        caller.tell({"threads": outcomes})
    return SANDBOX_FAILED if any("error" in each for each in outcomes) else 0


def health(url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Ask the server how it is doing. Leaves with 1 where it is unhealthy."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_health(caller))


async def _health(caller: Caller) -> int:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.health()
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
    else:
        checks = {f"check: {name}": outcome for name, outcome in found.checks.items()}
        facts = {**found.model_dump(exclude={"checks"}), **checks}
        caller.table((), ((name, str(value)) for name, value in facts.items()))
    return 1 if found.status == "unhealthy" else 0
