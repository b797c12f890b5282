"""Reports the begin and end of sessions to the registry, and vouches for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from sandbox_sdk.protocol.errors import Misdirected, RuntimeUnavailable
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.registry import Record, Registry, Status

log = structlog.get_logger()

BATCH = 200
"""Sessions vouched for per call: larger batches would block the event loop."""


class Reporter:
    """Repeats what the registry did not acknowledge, or may have lost."""

    def __init__(self, registry: Registry, lease: Lease) -> None:
        self._registry = registry
        self._lease = lease
        self._unreported: dict[str, Record] = {}
        """Ended sessions the registry has not acknowledged, by session_id."""

    def is_behind(self, sessions: Iterable[LiveSession]) -> bool:
        """Whether a session is not vouched for, or an end not reported."""
        return bool(self._unreported) or not all(map(self.has_vouched_for, sessions))

    def has_vouched_for(self, session: LiveSession) -> bool:
        """Whether the session was vouched for since the last gap in the lease."""
        return session.record.epoch == self._lease.epoch

    async def begin(self, record: Record, *, before: Record | None) -> None:
        """Record a new session. Raises like Registry.begin: the session is then void, and its end
        is reported later in case the registry has stored it after all."""
        try:
            await self._registry.begin(record, before=before)
            self._registry.ledger.begin(record.box_id)
        except Misdirected:
            raise
        except BaseException:
            self._unreported[record.session_id] = replace(record, status=Status.LOST)
            raise

    async def end(self, record: Record) -> None:
        """Report the end of a session. If the registry is silent, report_ends() repeats it."""
        self._unreported[record.session_id] = record
        try:
            await self._registry.end(record, record.status)
        except RuntimeUnavailable as exc:
            log.warning("session.end_not_told", thread=record.thread_id, why=str(exc))
        except Exception:
            log.exception("session.end_not_told", thread=record.thread_id)
        else:
            self._unreported.pop(record.session_id, None)

    async def vouch(self, sessions: Sequence[LiveSession]) -> list[LiveSession]:
        """Vouch for sessions; returns those taken over by others. Raises RuntimeUnavailable."""
        epoch = self._lease.epoch
        records = [replace(session.record, epoch=epoch) for session in sessions]
        superseded = []
        ours = await self._registry.restore_all(records)
        for session, record, is_ours in zip(sessions, records, ours, strict=True):
            if is_ours:
                session.record = record
            elif session.ended is None:
                superseded.append(session)
        return superseded

    async def report_ends(self) -> None:
        """Report pending ends. Raises RuntimeUnavailable if some are left."""
        for ended in list(self._unreported.values()):
            await self.end(ended)
        if self._unreported:
            raise RuntimeUnavailable(
                f"{len(self._unreported)} ended sessions are not recorded in the registry yet;"
                " this is retried"
            )
