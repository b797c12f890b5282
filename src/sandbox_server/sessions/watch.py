"""Looking after live sessions for as long as a worker runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.table import SessionTable
from sandbox_server.tasks import TaskSet, stop

log = structlog.get_logger()

TIDY_EVERY_S = 1800.0
"""How often what nobody will ask for is dropped from the registry."""
HALF_MADE_S = 600.0
"""A session that the registry knows for longer than this, and this worker does not, has no box."""


class Watch:
    """Keeps the dead-man's switches quiet, ends what is idle, notices what is gone, and tells the
    registry what it lacks. Use as an async context manager.

    Every session is looked at by itself: one whose box hangs holds up nobody else, and nothing that
    goes wrong with one ends the watch.
    """

    def __init__(
        self, table: SessionTable, registry: Registry, *, deadman_s: float, tick_s: float
    ) -> None:
        self._table = table
        self._registry = registry
        self._ping_every_s = max(deadman_s / 4, tick_s)
        self._tick_s = tick_s
        self._looking_at: set[str] = set()
        self._looks: TaskSet[None] = TaskSet()

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(self._watching)
        await self._looks.stop()

    async def _watch(self) -> None:
        next_ping = time.monotonic() + self._ping_every_s
        next_tidy = time.monotonic()
        while True:
            await asyncio.sleep(self._tick_s)
            now = time.monotonic()
            pinging = now >= next_ping
            if pinging:
                next_ping = now + self._ping_every_s
            for session in self._table.sessions():
                if pinging or session.is_idle(now):
                    self._look(session.record.session_id, partial(self._look_at, session))
            if self._table.behind:
                self._look("registry", self._table.vouch)
            if now >= next_tidy:
                next_tidy = now + TIDY_EVERY_S
                self._look("tidy", self._tidy)

    def _look(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in the background, unless it is being done already."""
        if name in self._looking_at:
            return
        self._looking_at.add(name)

        async def guarded() -> None:
            try:
                await work()
            except RuntimeUnavailable as exc:
                log.warning("watch.unavailable", what=name, why=exc.message)
            except Exception:
                log.exception("watch.failed", what=name)
            finally:
                self._looking_at.discard(name)

        self._looks.start(guarded)

    async def _look_at(self, session: LiveSession) -> None:
        try:
            if session.is_idle(time.monotonic()):
                await self._table.expire(session)
            else:
                await session.agent.ping()
        except SessionLost:
            await self._table.lose(session)

    async def _tidy(self) -> None:
        """Also end what Redis was told of too late, after it had been frozen."""
        await self._registry.tidy()
        here = {session.record.session_id for session in self._table.sessions()}
        for record in await self._registry.live():
            if record.session_id not in here and time.time() - record.created_at > HALF_MADE_S:
                await self._table.abandon(record)
