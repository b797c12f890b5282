"""The registry: an index of sessions that outlives the worker.

It remembers sessions whose boxes are gone, so that a loss is reported instead of silently replaced.
The registry is authoritative, whatever a box reports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandbox_sdk.protocol.errors import SandboxError, SessionLost, SessionNotFound
from sandbox_sdk.protocol.models import Target
from sandbox_server.sessions.ledger import Ledger
from sandbox_server.sessions.previews import PreviewTable, SessionPreviews
from sandbox_server.storage.history import History
from sandbox_server.usage.ledger import SharedUsage

REMEMBER_S = 7 * 86400.0
"""How long an ended session is remembered, so that callers learn how it ended."""
REMEMBER_KEPT_S = 400 * 86400.0
"""The same for one whose thread is to go on: longer than a checkpoint of it is kept."""


class Status(StrEnum):
    LIVE = "live"
    CLEANED = "cleaned"
    """Ended by its caller."""
    EXPIRED = "expired"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One session of a thread."""

    tenant: str
    thread_id: str
    generation: int
    session_id: str
    box_id: str
    status: Status
    created_at: float
    worker: str = ""
    """The worker that has it, and the epoch in which that worker last vouched for it."""
    epoch: int = 0
    asked: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What its caller asked for, so that the next session of the thread can have the same."""
    movable: str = ""
    """The provider of a box that belongs to no machine: when its worker is gone, any other that has
    this provider can take the session over."""
    claims: int = 0
    """How often such a box was claimed: of two workers that have it, the one with more."""
    more: dict[str, Any] = field(default_factory=dict, hash=False)
    """Unknown fields of a later version, kept unchanged."""


def remember_s(record: Record) -> float:
    return REMEMBER_KEPT_S if record.asked.get("persist") else REMEMBER_S


class Registry(ABC):
    """The sessions as one worker sees them. Every method may raise RuntimeUnavailable."""

    ledger: Ledger
    """The worker's record of its boxes, in a local file."""
    previews: PreviewTable
    """Those of its sessions, in the same file."""
    history: History | None = None
    """Where sessions are remembered after their end; None: in a local file."""
    usage: SharedUsage | None = None
    """Where a fleet adds up what its sessions use."""

    @abstractmethod
    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        """The latest session of a thread, live or not."""

    @abstractmethod
    async def by_session(self, tenant: str, session_id: str) -> Record | None:
        """The session with this id, live or not."""

    @abstractmethod
    async def live(self) -> list[Record]:
        """The live sessions recorded for this worker."""

    @abstractmethod
    async def predecessor(self, tenant: str, thread_id: str) -> Record | None:
        """The latest session of a thread, if a new one may now follow it on this worker.

        Raises Misdirected if another worker has the thread, and RuntimeUnavailable if that worker
        is away and may come back with it.
        """

    @abstractmethod
    async def begin(self, record: Record, *, before: Record | None) -> None:
        """Record a new session after `before`. Raises Misdirected if another worker was faster."""

    def owners(self) -> list[str]:
        """The labels that boxes of this worker may have. Empty: its own name alone."""
        return []

    async def restore(self, record: Record) -> bool:
        """restore_all for one session."""
        return (await self.restore_all([record]))[0]

    @abstractmethod
    async def restore_all(self, records: Sequence[Record]) -> list[bool]:
        """Vouch for live sessions; returns for each whether it is still its thread's session.

        One that the registry has lost is written again. One that has ended stays so.
        """

    @abstractmethod
    async def end(self, record: Record, status: Status) -> None:
        """Record the end of this worker's session. No-op if it was superseded."""

    # Only in a fleet can others take a session over.

    async def gone(self) -> dict[str, dict[str, Record]]:
        """The workers that do not come back, each with its live sessions by box."""
        return {}

    async def is_gone(self, _worker: str) -> bool:
        """Whether a worker does not come back, for all that this one can know."""
        return False

    async def is_elsewhere(self, _record: Record) -> bool:
        """Whether another worker has taken over this worker's session."""
        return False

    async def took(self, record: Record) -> None:  # noqa: B027
        """This worker has taken over a session, recorded so before."""

    @abstractmethod
    async def publish(self, previews: SessionPreviews) -> None:
        """Tell others of the previews of a session."""

    @abstractmethod
    async def explain(self, record: Record | None, target: Target) -> SandboxError:
        """The error for a caller whose session, the target, is not live on this worker."""

    @abstractmethod
    async def tidy(self) -> None:
        """Delete expired records."""

    @abstractmethod
    async def close(self) -> None: ...


def is_same_or_older(found: Record, record: Record) -> bool:
    """Whether the record found lets a live session keep its thread."""
    if found.session_id == record.session_id:
        return found.status == Status.LIVE
    return found.generation < record.generation


def error_for(record: Record | None, target: Target) -> SandboxError:
    """The error for a session that is live nowhere. target: what the caller asked for."""
    if record is not None and record.status in (Status.LOST, Status.LIVE):
        return SessionLost.of(record.session_id, generation=record.generation)
    return SessionNotFound.of(thread_id=target.thread_id, session_id=target.session_id)
