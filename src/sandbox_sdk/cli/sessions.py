"""Sessions as a whole: `sandbox ps`, `rm`, `pause`, `unpause`, `lifetime` and `egress`; and
`health` of the server that has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from sandbox_sdk.cli.caller import SANDBOX_FAILED, Caller, error_body
from sandbox_sdk.cli.options import Thread
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import EgressRules, SessionInfo, SessionSummary
from sandbox_sdk.units import seconds

_HEADS = ("THREAD", "STATE", "IDLE", "EXPIRES", "GENERATION", "RUNTIME", "WORKER")


async def ps(
    thread: Annotated[
        str | None, typer.Argument(metavar="[T]", help="A thread_id: the same as --thread T.")
    ] = None,
    *,
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
    caller: Caller,
) -> None:
    """List the live sessions, or of one thread its session and its commands.

    IDLE is the time since the last command ended or file moved, EXPIRES when the session ends if
    nothing more is done. A COMMAND is what `sandbox logs` and `sandbox kill` take.
    """
    if thread is not None and of_thread not in (None, thread):
        raise typer.BadParameter(f"give one thread, not {thread!r} and {of_thread!r}")
    wanted = of_thread if thread is None else thread
    if wanted is not None:
        await _list_commands(caller, wanted)
        return
    pairs = [text.partition("=")[::2] for text in metadata or ()]
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.sessions(metadata=urlencode(pairs) or None)
    caller.say_table(found, _HEADS, map(_row, found.sessions))
    caller.complain_of_missing(found.unreachable, "the sessions there are not in this list")


def _row(session: SessionSummary | SessionInfo) -> tuple[str, ...]:
    environment = "" if session.environment is None else f" ({session.environment})"
    return (
        session.thread_id,
        session.state,
        span(session.idle_s),
        f"{session.expires_at.astimezone():%H:%M:%S}",
        str(session.generation),
        f"{session.runtime}{environment}",
        session.worker,
    )


async def _list_commands(caller: Caller, thread: str) -> None:
    async with caller.client(thread) as sandbox:
        session = await sandbox.session()
        found = await sandbox.commands()
    if caller.json:
        caller.tell({"session": session.to_dict(), **found.to_dict()})
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


async def rm(
    threads: Annotated[list[str] | None, typer.Argument(metavar="T...", help="Thread_ids.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All that `sandbox ps` lists.")] = False,
    caller: Caller,
) -> int:
    """End the sessions of threads, with their files. One that fails does not keep the others."""
    if every == bool(threads):
        raise typer.BadParameter("name the threads to end, or pass --all", param_hint="T...")
    outcomes: list[dict[str, Any]] = []
    if not threads:
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


async def pause(thread: Thread, *, caller: Caller) -> None:
    """Stop all that runs in a session until it is used again, for 24 hours at most."""
    await _changed(caller, thread, lambda sandbox: sandbox.pause())


async def unpause(thread: Thread, *, caller: Caller) -> None:
    """Let what runs in a paused session go on."""
    await _changed(caller, thread, lambda sandbox: sandbox.unpause())


async def lifetime(
    thread: Thread,
    lasts: Annotated[
        str, typer.Argument(metavar="DURATION", help="From now, such as 90s, 10m or 2h; 0: none.")
    ],
    *,
    caller: Caller,
) -> None:
    """End a session so long from now, used or not, with what runs in it."""
    try:
        lifetime_s = seconds(lasts)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="DURATION") from None
    await _changed(caller, thread, lambda sandbox: sandbox.set_lifetime(lifetime_s))


async def _changed(
    caller: Caller, thread: str, change: Callable[[AsyncSandboxClient], Awaitable[SessionSummary]]
) -> None:
    async with caller.client(thread) as sandbox:
        session = await change(sandbox)
    ends = "when it is idle" if session.end_at is None else f"{session.end_at.astimezone():%F %T}"
    caller.say(session, f"{session.thread_id}: {session.state}, ends {ends}")


async def egress(
    thread: Thread,
    *,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="An address, network or name; counts before --deny."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="An address or a network; 0.0.0.0/0 is everything."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Take all such rules back.")] = False,
    caller: Caller,
) -> None:
    """Say what a session may not reach of what its network allows, or show it.

    Give --allow and --deny once for each; they replace the ones before.
    """
    if reset and (allow or deny):
        raise typer.BadParameter("goes without --allow and --deny", param_hint="--reset")
    async with caller.client(thread) as sandbox:
        if reset or allow or deny:
            await sandbox.set_egress(allow=allow or [], deny=deny or [])
        session = await sandbox.session()
    rules = session.egress_rules or EgressRules()
    lines = [f"{thread}: network {session.limits.network}"]
    for name, entries in (("allow", rules.allow), ("deny", rules.deny)):
        lines += [f"  {name} {entry}" for entry in entries]
    caller.say(rules, "\n".join(lines))


async def health(*, caller: Caller) -> int:
    """Ask the server how it is doing. Leaves with 1 where it is unhealthy."""
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.health()
    checks = {f"check: {name}": outcome for name, outcome in found.checks.items()}
    facts = {**found.model_dump(exclude={"checks"}), **checks}
    caller.say_table(found, (), ((name, str(value)) for name, value in facts.items()))
    return 1 if found.status == "unhealthy" else 0
