"""The table of live sessions: getting, making, losing and ending them."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from sandbox_sdk.protocol.errors import (
    Capacity,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.protocol.models import SessionState, Target
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.registry import Record, SqliteRegistry, Status

log = structlog.get_logger()

Key = tuple[str, str]
"""Tenant and thread_id."""


class BoxSource(Protocol):
    """Where boxes for new sessions come from."""

    async def claim(self, environment: str | None) -> tuple[Box, WardenClient]:
        """A box nobody has used, with a warden that answers. Raises Capacity."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """How a new session is to be. None and empty mean: as configured."""

    environment: str | None = None
    env: Mapping[str, str] | None = None
    idle_timeout_s: float | None = None
    session_id: str | None = None


class SessionTable:
    """At most one live session a thread. All waiting happens under the thread's own lock."""

    def __init__(
        self,
        registry: SqliteRegistry,
        source: BoxSource,
        *,
        idle_timeout_s: float,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._source = source
        self._idle_timeout_s = idle_timeout_s
        self._capacity = capacity
        self._clock = clock
        self._wall = wall
        self._live: dict[Key, LiveSession] = {}
        self._locks: dict[Key, tuple[asyncio.Lock, int]] = {}
        self._making = 0

    def __repr__(self) -> str:
        return f"<SessionTable {len(self._live)} live of {self._capacity}>"

    def __len__(self) -> int:
        return len(self._live)

    @property
    def room(self) -> int:
        """How many more sessions may begin."""
        return max(self._capacity - len(self._live) - self._making, 0)

    def sessions(self) -> list[LiveSession]:
        return list(self._live.values())

    async def open(
        self, tenant: str, thread_id: str, life: Life | None = None
    ) -> tuple[LiveSession, SessionState]:
        """The live session of a thread, made where there is none.

        Raises Capacity, RuntimeUnavailable.
        """
        key = (tenant, thread_id)
        async with self._locked(key):
            session = self._live.get(key)
            if session is not None and await self._is_there(session):
                return session, "live"
            return await self._begin(key, life or Life())

    async def find(self, tenant: str, target: Target) -> LiveSession:
        """The session meant. Raises SessionNotFound, and SessionLost for one that was lost."""
        record = self._record(tenant, target)
        session = None if record is None else self._live.get((tenant, record.thread_id))
        if record is None or session is None or session.record.session_id != record.session_id:
            raise _missing(record)
        return session

    async def lose(self, session: LiveSession) -> SandboxError:
        """The box is gone: what to tell whoever was using it.

        That is a loss, unless the session was ended on purpose meanwhile. The next call with its
        thread_id starts a new life.
        """
        await self._end(session, Status.LOST)
        record = session.record
        return _missing(self._registry.by_session(record.tenant, record.session_id))

    async def cleanup(self, session: LiveSession) -> None:
        async with self._locked(_key(session)):
            await self._end(session, Status.CLEANED)

    async def expire(self, session: LiveSession) -> None:
        """End a session unless it has been used meanwhile: its box has the last word."""
        async with self._locked(_key(session)):
            if self._live.get(_key(session)) is not session or session.busy:
                return
            try:
                idle_s = (await session.warden.state()).idle_s
            except RuntimeUnavailable:
                return
            except SessionLost:
                await self._end(session, Status.LOST)
                return
            session.last_used = max(session.last_used, self._clock() - idle_s)
            if session.is_idle(self._clock()):
                await self._end(session, Status.EXPIRED)

    def adopt(
        self,
        record: Record,
        box: Box,
        warden: WardenClient,
        *,
        idle_timeout_s: float,
        idle_s: float,
    ) -> LiveSession:
        """Take a session over that a server before this one has made."""
        session = LiveSession(record, box, warden, idle_timeout_s, self._clock() - idle_s)
        self._registry.save(record, now=self._wall())
        self._live[_key(session)] = session
        return session

    def tell_lost(self, found: set[str]) -> int:
        """After adoption: what the registry thinks alive and nobody found is lost."""
        lost = [r for r in self._registry.live() if r.session_id not in found]
        for record in lost:
            self._registry.end(record, Status.LOST, now=self._wall())
            log.warning("session.lost", thread=record.thread_id, generation=record.generation)
        return len(lost)

    def _record(self, tenant: str, target: Target) -> Record | None:
        if target.session_id is not None:
            return self._registry.by_session(tenant, target.session_id)
        assert target.thread_id is not None
        return self._registry.newest(tenant, target.thread_id)

    async def _is_there(self, session: LiveSession) -> bool:
        try:
            await session.warden.connect()
        except SessionLost:
            await self._end(session, Status.LOST)
            return False
        return True

    async def _begin(self, key: Key, life: Life) -> tuple[LiveSession, SessionState]:
        if self.room <= 0:
            raise Capacity(
                f"this server has its {self._capacity} sessions; try again later", retry_after_s=5
            )
        before = self._registry.newest(*key)
        self._making += 1
        try:
            box, warden = await self._source.claim(life.environment)
            try:
                session = await self._furnish(key, life, box, warden, before)
            except BaseException:
                await asyncio.shield(_discard(box, warden))
                raise
        finally:
            self._making -= 1
        again = before is not None and before.status in (Status.LOST, Status.EXPIRED)
        log.info("session.created", thread=key[1], tenant=key[0], box=box.id,
                 generation=session.record.generation)  # fmt: skip
        return session, "recreated" if again else "created"

    async def _furnish(
        self, key: Key, life: Life, box: Box, warden: WardenClient, before: Record | None
    ) -> LiveSession:
        record = Record(
            tenant=key[0],
            thread_id=key[1],
            generation=1 if before is None else before.generation + 1,
            session_id=life.session_id or str(uuid.uuid4()),
            box_id=box.id,
            status=Status.LIVE,
            created_at=self._wall(),
        )
        idle_timeout_s = life.idle_timeout_s or self._idle_timeout_s
        session = LiveSession(record, box, warden, idle_timeout_s, self._clock())
        await warden.set_state(session.state())
        if life.env:
            exports = "; ".join(f"export {k}={shlex.quote(v)}" for k, v in life.env.items())
            await warden.run(exports)
        self._registry.save(record, now=self._wall())
        self._live[_key(session)] = session
        return session

    async def _end(self, session: LiveSession, status: Status) -> None:
        if self._live.get(_key(session)) is session:
            del self._live[_key(session)]
            self._registry.end(session.record, status, now=self._wall())
            log.info("session.ended", thread=session.record.thread_id, reason=status.value,
                     box=session.box.id, idle_s=round(session.idle_s(self._clock())))  # fmt: skip
        await asyncio.shield(_end_box(session))

    @contextlib.asynccontextmanager
    async def _locked(self, key: Key) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = lock, users - 1


def _missing(record: Record | None) -> SandboxError:
    if record is not None and record.status == Status.LOST:
        return SessionLost(
            "the sandbox of this session is gone, with its files; a call with its thread_id"
            " starts a new one",
            generation=record.generation,
        )
    return SessionNotFound("no such session; create_session makes one")


def _key(session: LiveSession) -> Key:
    return session.record.tenant, session.record.thread_id


async def _end_box(session: LiveSession) -> None:
    await session.let_go()
    await _discard(session.box, session.warden)


async def _discard(box: Box, warden: WardenClient) -> None:
    """A box is used by one session and then destroyed. What cannot be reached ends itself."""
    await warden.close()
    with contextlib.suppress(SandboxError):
        await box.destroy()
