"""The registry: an index of sessions that outlives the worker.

It remembers what a box that is gone can no longer tell: that there was one, so that a loss is told
and never papered over. What it says of a session counts, whatever the box says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandbox_sdk.protocol.errors import SandboxError, SessionLost, SessionNotFound
from sandbox_server.sessions.ledger import Ledger

REMEMBER_S = 7 * 86400.0
"""How long an ended session is remembered, so that its thread is told what became of it."""


class Status(StrEnum):
    LIVE = "live"
    CLEANED = "cleaned"
    """Ended because its caller said so."""
    EXPIRED = "expired"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One session: a life of a thread."""

    tenant: str
    thread_id: str
    generation: int
    session_id: str
    box_id: str
    status: Status
    created_at: float
    worker: str = ""
    """Whose boxes it lives among, and the epoch in which that worker last vouched for it."""
    epoch: int = 0
    more: dict[str, Any] = field(default_factory=dict, hash=False)
    """What a later version has written beside, kept as it came."""


class Registry(ABC):
    """What one worker knows of sessions. Every method may raise RuntimeUnavailable."""

    ledger: Ledger
    """What it knows of its boxes, in a file on its own machine."""

    @abstractmethod
    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        """The latest life of a thread, live or not."""

    @abstractmethod
    async def by_session(self, tenant: str, session_id: str) -> Record | None:
        """The life of that name, however long ago."""

    @abstractmethod
    async def live(self) -> list[Record]:
        """What this worker had, by the last that was heard of it."""

    @abstractmethod
    async def predecessor(self, tenant: str, thread_id: str) -> Record | None:
        """The latest life of a thread that a new one may follow, here and now.

        Raises Misdirected where another worker has the thread, and RuntimeUnavailable where that
        worker is out of reach but may come back with it.
        """

    @abstractmethod
    async def begin(self, record: Record, *, before: Record | None) -> None:
        """A session begins after `before`. Raises Misdirected where somebody else was faster."""

    async def restore(self, record: Record) -> bool:
        """The same as restore_all, of one."""
        return (await self.restore_all([record]))[0]

    @abstractmethod
    async def restore_all(self, records: Sequence[Record]) -> list[bool]:
        """Sessions live in their boxes: of each, whether it is still its thread's session.

        Where the registry has forgotten one, it learns of it again. One that has ended stays so.
        """

    @abstractmethod
    async def end(self, record: Record, status: Status) -> None:
        """A session of this worker has ended. Nothing happens where it was superseded."""

    @abstractmethod
    async def explain(self, record: Record | None) -> SandboxError:
        """What to tell a caller whose session is not among this worker's live ones."""

    @abstractmethod
    async def tidy(self) -> None:
        """Drop what nobody will ask for any more."""

    @abstractmethod
    async def close(self) -> None: ...


def is_same_or_older(found: Record, record: Record) -> bool:
    """Whether what a registry has found does not stand in the way of a live session."""
    if found.session_id == record.session_id:
        return found.status == Status.LIVE
    return found.generation < record.generation


def error_for(record: Record | None) -> SandboxError:
    """The error for a session that is live nowhere."""
    if record is not None and record.status in (Status.LOST, Status.LIVE):
        return SessionLost(
            f"session {record.session_id} is lost: its box is gone, with its files; a call with its"
            " thread_id starts a new one",
            generation=record.generation,
        )
    return SessionNotFound("no such session; create_session makes one")
