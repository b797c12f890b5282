"""The history: what is remembered of sessions, live ones and ended ones.

Nothing waits for it: what happens is noted in memory, and written a moment later.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import structlog

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionNotFound

log = structlog.get_logger()

HOLD_S = 0.5
"""How long a note waits for others, to be written with them."""
MOST_HELD = 20_000
"""If so many notes wait, because nothing can be written, the oldest are dropped and counted."""
TEXT = 4096
"""Most characters of a command, and of the end of its output."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How much is remembered."""

    retention_s: float
    """After its end."""
    sessions: int
    """Of one tenant; the oldest go first."""
    commands: int
    """Of one session; 0: none."""


@dataclass(frozen=True, kw_only=True)
class Began:
    tenant: str
    session_id: str
    sandbox_id: str
    thread_id: str
    generation: int
    provider: str
    environment: str | None
    agent: str | None
    worker: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Ran:
    tenant: str
    session_id: str
    command_id: str
    command: str
    at: float
    exit_code: int | None
    duration_ms: float
    output: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    tenant: str
    session_id: str
    state: models.StoredState
    at: float


Note = Began | Ran | Ended


class History(ABC):
    """Every method may raise RuntimeUnavailable."""

    @abstractmethod
    async def write(self, notes: Sequence[Note]) -> None: ...

    @abstractmethod
    async def find(
        self, tenant: str, request: models.StoredSessionsRequest
    ) -> models.StoredSessionList: ...

    @abstractmethod
    async def get(
        self, tenant: str, session_id: str
    ) -> tuple[models.StoredSession, list[models.StoredCommand], bool] | None:
        """A session with its commands, and whether older ones are no longer stored."""

    @abstractmethod
    async def tidy(self) -> None:
        """Forget what is past its retention."""


class Journal:
    """Takes notes and has them written. Use as an async context manager; without one, or without
    a history, nothing is remembered."""

    def __init__(self, history: History | None = None, *, commands: bool = True) -> None:
        self._history = history
        self.wants_commands = commands and history is not None
        self._held: deque[Note] = deque()
        self._dropped = 0
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def note(self, note: Note) -> None:
        if self._task is None:
            return
        if len(self._held) >= MOST_HELD:
            self._held.popleft()
            self._dropped += 1
        self._held.append(note)
        self._some.set()

    async def __aenter__(self) -> Self:
        if self._history is not None:
            self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.flush()
            self._task = None

    async def flush(self) -> None:
        """Write what is held. What cannot be written now stays held."""
        if self._history is None:
            return
        async with self._writing:
            notes, before = list(self._held), self._dropped
            if not notes:
                return
            try:
                await self._history.write(notes)
            except RuntimeUnavailable as exc:
                log.warning("history.not_written", notes=len(notes), why=exc.message)
                return
            meanwhile = self._dropped - before
            self._dropped = before + max(meanwhile - len(notes), 0)  # Those before are written.
            for _ in range(len(notes) - meanwhile):
                self._held.popleft()
            if self._dropped:
                log.warning("history.dropped", notes=self._dropped)
                self._dropped = 0

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(HOLD_S)
            self._some.clear()
            await self.flush()


def cut(text: str, *, end: bool = False) -> str:
    """At most TEXT characters: the first, or the last. Says how many are left out."""
    if len(text) <= TEXT:
        return text
    left_out = f"[{len(text) - TEXT} characters left out]"
    return f"{left_out}\n{text[-TEXT:]}" if end else f"{text[:TEXT]}\n{left_out}"


def stored_session(fields: dict[str, Any]) -> models.StoredSession:
    """From the fields of Began, with state, ended_at and commands."""
    known = {
        name: value for name, value in fields.items() if name in models.StoredSession.model_fields
    }
    return models.StoredSession.model_validate(
        {**known, "created_at": moment(fields["at"]), "ended_at": moment(fields.get("ended_at"))}
    )


def stored_command(fields: dict[str, Any]) -> models.StoredCommand:
    """From the fields of Ran."""
    return models.StoredCommand.model_validate({**fields, "at": moment(fields["at"])})


def moment(timestamp: float | None) -> datetime | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC)


def command_fields(note: Ran) -> dict[str, Any]:
    """What is stored of a command, as any database can: text that is valid Unicode, and of a
    bounded length. No `asdict`, which copies deeply: calls wait for the thread that writes."""

    def clean(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    return {
        "command_id": note.command_id,
        "command": cut(clean(note.command)),
        "at": note.at,
        "exit_code": note.exit_code,
        "duration_ms": note.duration_ms,
        "output": cut(clean(note.output), end=True),
    }


async def stored_detail(
    history: History, tenant: str, session_id: str, artifacts: list[models.Artifact]
) -> models.StoredSessionDetail:
    """All that is stored of a session. Raises SessionNotFound, also for one of another tenant."""
    found = await history.get(tenant, session_id)
    if found is None:
        raise SessionNotFound.of(thread_id=None, session_id=session_id)
    session, commands, truncated = found
    return models.StoredSessionDetail(
        **dict(session), log=commands, log_truncated=truncated, artifacts=artifacts
    )
