"""Notes of what happens in sessions, for the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import SessionLost
from sandbox_sdk.protocol.models import HappeningKind, SessionState, StoredState
from sandbox_server.events.log import EventLog
from sandbox_server.metrics.recorder import NO_METRICS, CommandOutcome, Metrics
from sandbox_server.runtime.agent import BoxState, CommandResult
from sandbox_server.sessions.live import WATCHED, LiveSession
from sandbox_server.sessions.registry import Record
from sandbox_server.storage.history import TEXT, Began, Ended, Journal, Ran

log = structlog.get_logger()

_BEGUN: dict[SessionState, HappeningKind] = {
    "restored": "session.restored",
    "resumed": "session.resumed",
}


class SessionNotes:
    """Without a journal nothing is noted."""

    def __init__(
        self,
        journal: Journal | None = None,
        metrics: Metrics = NO_METRICS,
        events: EventLog | None = None,
    ) -> None:
        self._journal = journal or Journal()
        self.events = events or EventLog()
        self.metrics = metrics
        self.promised: Callable[[str], list[str]] = lambda _session_id: []
        """Commands in the background whose end somebody was promised to be told; set by whoever
        has webhooks."""
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

    def opened(self, session: LiveSession, state: SessionState) -> None:
        """It has begun for a caller; state: how."""
        kind = _BEGUN.get(state, "session.created")
        self._publish(kind, session.record, session_state=state, environment=session.environment)

    def paused(self, session: LiveSession, *, is_paused: bool) -> None:
        """It was paused, or goes on."""
        kind: HappeningKind = "session.paused" if is_paused else "session.unpaused"
        log.info(kind, thread=session.record.thread_id, box=session.box.id)
        self._publish(kind, session.record)

    def ended(self, record: Record) -> None:
        state: StoredState = record.status.value
        kind: HappeningKind = "session.lost" if state == "lost" else "session.ended"
        self._publish(kind, record, reason=state)
        self._journal.note(
            Ended(tenant=record.tenant, session_id=record.session_id, state=state, at=time.time())
        )

    def _publish(self, kind: HappeningKind, record: Record, **data: Any) -> None:
        self.events.publish(
            kind,
            record.tenant,
            thread_id=record.thread_id,
            session_id=record.session_id,
            generation=record.generation,
            **data,
        )

    def ran(
        self, session: LiveSession, command: str, result: CommandResult, *, output: str | None
    ) -> None:
        """output: the end of it, where the result does not have it."""
        self._finished(session, result.command_id, result, background=False)
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

    def watch_running(self, session: LiveSession, state: BoxState) -> None:
        """Count the commands that a box reports as running as use until they end, and tell of that:
        whoever started them does not wait any more."""
        running = [c.command_id for c in state.commands if c.running and c.pty is None]
        # One may have ended while nobody watched.
        promised = self.promised(session.record.session_id)
        for command_id in dict.fromkeys([*running[-WATCHED:], *promised]):
            session.watch(
                command_id, for_s=None, then=partial(self.ran_unwatched, session, command_id)
            )

    def ran_unwatched(
        self, session: LiveSession, command_id: str, result: CommandResult | None
    ) -> None:
        """A command in the background has ended; None if its box did not tell how."""
        self._finished(session, command_id, result, background=True)

    def _finished(
        self,
        session: LiveSession,
        command_id: str,
        result: CommandResult | None,
        *,
        background: bool,
    ) -> None:
        outcome: CommandOutcome = "error" if result is None else outcome_of(result)
        self.metrics.command(outcome, None if result is None else result.duration_ms / 1000)
        self.events.publish(
            "command.finished",
            session.record.tenant,
            thread_id=session.record.thread_id,
            session_id=session.record.session_id,
            command_id=command_id,
            exit_code=None if result is None else result.exit_code,
            outcome=outcome,
            duration_ms=None if result is None else result.duration_ms,
            background=background,
        )

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
