"""`sandbox ps`, `rm` and `health`: what there is, its end, and the server that has it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandbox_sdk.cli.caller import SANDBOX_FAILED, Caller, error_body
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import SandboxError


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
    caller.run(_list_sessions(caller) if thread is None else _list_commands(caller, thread))


async def _list_sessions(caller: Caller) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.sessions()
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
        return
    rows = [
        (
            each.thread_id,
            each.state,
            span(each.idle_s),
            f"{each.expires_at.astimezone():%H:%M:%S}",
            str(each.generation),
            each.runtime if each.environment is None else f"{each.runtime} ({each.environment})",
            each.worker,
        )
        for each in found.sessions
    ]
    heads = ("THREAD", "STATE", "IDLE", "EXPIRES", "GENERATION", "RUNTIME", "WORKER")
    caller.table(heads, rows)
    if found.unreachable:
        silent = ", ".join(found.unreachable)
        caller.complain(f"no answer from {silent}: the sessions there are not in this list")


async def _list_commands(caller: Caller, thread: str) -> None:
    async with caller.client(thread) as sandbox:
        found = await sandbox.commands()
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
        return
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
