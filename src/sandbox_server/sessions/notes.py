"""Notes of what happens in sessions, for the history."""

from __future__ import annotations

import asyncio
import time

from sandbox_sdk.protocol.models import StoredState
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

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
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
        session.commands += 1
        if session.is_due(time.monotonic()):
            self.due.set()
        if self._journal.wants_commands:
            tail = result.tail(TEXT) if output is None else output
            self._note_run(session, command, result.command_id, result.exit_code,
                           result.duration_ms, tail)  # fmt: skip

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
