"""The teller: what a worker tells the registry of its sessions, and what it still has to tell."""

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
"""How many sessions are vouched for in one go: others wait for the event loop meanwhile."""


class Teller:
    """Nothing is told once and for all: a registry may not answer, and may forget."""

    def __init__(self, registry: Registry, lease: Lease) -> None:
        self._registry = registry
        self._lease = lease
        self._untold: dict[str, Record] = {}
        """Ends that the registry could not be told, by session_id."""

    def is_behind(self, sessions: Iterable[LiveSession]) -> bool:
        """Whether the registry lacks something about these, or about one that has ended."""
        return bool(self._untold) or not all(map(self.has_vouched_for, sessions))

    def has_vouched_for(self, session: LiveSession) -> bool:
        """Whether the registry was told of a session since the last gap in the lease."""
        return session.record.epoch == self._lease.epoch

    async def begin(self, record: Record, *, before: Record | None) -> None:
        """A session begins, in its box. Raises as Registry.begin does: then it never was, and a
        registry that has heard of it all the same will hear of its end."""
        try:
            await self._registry.begin(record, before=before)
            self._registry.ledger.begin(record.box_id)
        except Misdirected:
            raise
        except BaseException:
            self._untold[record.session_id] = replace(record, status=Status.LOST)
            raise

    async def end(self, record: Record) -> None:
        """A session has ended, as its record says. Where the registry does not answer, it is told
        again later."""
        self._untold[record.session_id] = record
        try:
            await self._registry.end(record, record.status)
        except RuntimeUnavailable as exc:
            log.warning("session.end_not_told", thread=record.thread_id, why=str(exc))
        except Exception:
            log.exception("session.end_not_told", thread=record.thread_id)
        else:
            self._untold.pop(record.session_id, None)

    async def vouch(self, sessions: Sequence[LiveSession]) -> list[LiveSession]:
        """Vouch for these; those that others have taken over. Raises RuntimeUnavailable."""
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

    async def tell_ends(self) -> None:
        """Raises RuntimeUnavailable where some are left to be told."""
        for ended in list(self._untold.values()):
            await self.end(ended)
        if self._untold:
            raise RuntimeUnavailable(
                f"the registry could not be told of {len(self._untold)} ended sessions; they are"
                " told again"
            )
