"""Notes of what happens in sessions, for the history."""

from __future__ import annotations

import asyncio
import time

from sandbox_sdk.protocol.errors import SessionLost
from sandbox_sdk.protocol.models import StoredState
from sandbox_server.metrics.recorder import NO_METRICS, CommandOutcome, Metrics
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.registry import Record, Status
from sandbox_server.storage.history import TEXT, Began, Ended, Journal, Ran

_STATES: dict[Status, StoredState] = {
    Status.LIVE: "live",
    Status.CLEANED: "cleaned",
    Status.EXPIRED: "expired",
    Status.LOST: "lost",
}


class SessionNotes:
    """Without a journal nothing is noted."""

    def __init__(self, journal: Journal | None = None, metrics: Metrics = NO_METRICS) -> None:
        self._journal = journal or Journal()
        self.metrics = metrics
        self.due = asyncio.Event()
        """Set when a command has ended after which a checkpoint is to be taken."""

    def began(self, session: LiveSession) -> None:
        record = session.record
        self._journal.note(
            Began(
                tenant=record.tenant,
                session_id=record.session_id,
                sandbox_id=session.box.id,
                thread_id=record.thread_id,
                generation=record.generation,
                provider=session.provider,
                environment=session.environment,
                agent=session.made_for.name if session.made_for else None,
                worker=record.worker,
                at=record.created_at,
            )
        )

    def ended(self, record: Record) -> None:
        self._journal.note(
            Ended(
                tenant=record.tenant,
                session_id=record.session_id,
                state=_STATES[record.status],
                at=time.time(),
            )
        )

    def ran(
        self, session: LiveSession, command: str, result: CommandResult, *, output: str | None
    ) -> None:
        """output: the end of it, where the result does not have it."""
        self.metrics.command(outcome_of(result), result.duration_ms / 1000)
        session.commands += 1
        if session.is_due(time.monotonic()):
            self.due.set()
        if self._journal.wants_commands:
            tail = result.tail(TEXT) if output is None else output
            self._note_run(session, command, result.command_id, result.exit_code,
                           result.duration_ms, tail)  # fmt: skip

    def running(self, *, begun: bool = True) -> Running:
        """Around a command. begun: whether this call begins it, else it is not counted here."""
        return Running(self.metrics, over=not begun)

    def ran_unwatched(self, result: CommandResult | None) -> None:
        """A command in the background has ended; None if its box did not tell how."""
        if result is None:
            self.metrics.command("error")
        else:
            self.metrics.command(outcome_of(result), result.duration_ms / 1000)

    def started(self, session: LiveSession, command: str, command_id: str) -> None:
        """A command in the background, whose end is not awaited."""
        if self._journal.wants_commands:
            self._note_run(session, command, command_id, None, 0.0, "")

    def _note_run(
        self,
        session: LiveSession,
        command: str,
        command_id: str,
        exit_code: int | None,
        duration_ms: float,
        output: str,
    ) -> None:
        self._journal.note(
            Ran(
                tenant=session.record.tenant,
                session_id=session.record.session_id,
                command_id=command_id,
                command=command,
                at=time.time() - duration_ms / 1000,
                exit_code=exit_code,
                duration_ms=duration_ms,
                output=output,
            )
        )


class Running:
    """A command whose end is counted even if there is no result of it. `over`: it is counted."""

    def __init__(self, metrics: Metrics, *, over: bool) -> None:
        self._metrics = metrics
        self.over = over

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: object
    ) -> None:
        if kind is None or self.over:
            return
        if isinstance(exc, SessionLost):
            self._metrics.command("lost")
        else:  # A cancelled call or a closed stream is no Exception.
            self._metrics.command("error" if isinstance(exc, Exception) else "left")


def outcome_of(result: CommandResult) -> CommandOutcome:
    if result.timed_out:
        return "timeout"
    if result.signal is not None or result.reason in ("killed", "oom"):
        return "killed"
    return "failed" if result.exit_code else "ok"
