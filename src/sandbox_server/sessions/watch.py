"""Periodic checks of the live sessions while a worker runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_server.runtime.agent import Fenced
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.table import SessionTable
from sandbox_server.tasks import TaskSet, stop

log = structlog.get_logger()

TIDY_EVERY_S = 1800.0
"""How often expired records are deleted from the registry."""
LOOK_S = 0.1
"""The least time between two looks at all sessions."""
HALF_MADE_S = 600.0
"""A live record older than this without a session in the table has no box."""


class Watch:
    """Pings boxes (which resets their dead-man's switches), ends idle and lost sessions, and keeps
    the registry up to date. Use as an async context manager.

    Every session is checked in a task of its own: a hanging box delays no other, and a failure does
    not end the watch.
    """

    def __init__(
        self,
        table: SessionTable,
        registry: Registry,
        *,
        deadman_s: float,
        tick_s: float,
        sweep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """sweep: takes over what workers that are gone have left."""
        self._sweep = sweep
        self._table = table
        self._registry = registry
        self._ping_every_s = max(deadman_s / 4, tick_s)
        self._tick_s = tick_s
        self._running: set[str] = set()
        self._tasks: TaskSet[None] = TaskSet()

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(self._watching)
        await self._tasks.stop()

    async def _watch(self) -> None:
        next_ping = time.monotonic() + self._ping_every_s
        next_tidy = next_sweep = time.monotonic()
        while True:
            await self._next()
            now = time.monotonic()
            pinging = now >= next_ping
            if pinging:
                next_ping = now + self._ping_every_s
            for session in self._table.sessions():
                if session.box.ends_at is not None and session.keep.persist:
                    leave = partial(self._table.leave_box, session)
                    self._start_once(f"leaving of {session.record.session_id}", leave)
                if pinging or session.is_idle(now) or session.is_over:
                    self._start_once(session.record.session_id, partial(self._check, session))
                elif session.is_due(now):
                    name = f"checkpoint of {session.record.session_id}"
                    self._start_once(name, partial(self._keep, session))
            if self._table.behind:
                self._start_once("registry", self._table.vouch)
            if self._sweep is not None and now >= next_sweep:
                next_sweep = now + self._tick_s
                self._start_once("takeover", self._sweep)
            if now >= next_tidy:
                next_tidy = now + TIDY_EVERY_S
                self._start_once("tidy", self._tidy)

    async def _next(self) -> None:
        """Wait until it is time to look again."""
        await asyncio.sleep(min(self._tick_s, LOOK_S))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s()):
                await self._table.notes.due.wait()
        self._table.notes.due.clear()

    def _pause_s(self) -> float:
        """Up to the next tick, or until a lifetime is over."""
        ends = [s.end_at for s in self._table.sessions() if s.end_at is not None]
        return min(self._tick_s, max(min(ends) - time.time(), 0.0)) if ends else self._tick_s

    def _start_once(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in the background, unless work of this name is still running."""
        if name in self._running:
            return
        self._running.add(name)

        async def guarded() -> None:
            try:
                await work()
            except RuntimeUnavailable as exc:
                log.warning("watch.unavailable", what=name, why=exc.message)
            except Exception:
                log.exception("watch.failed", what=name)
            finally:
                self._running.discard(name)

        self._tasks.start(guarded)

    async def _check(self, session: LiveSession) -> None:
        try:
            if session.is_over or session.is_idle(time.monotonic()):
                await self._table.expire(session)
            else:
                await session.agent.ping()
        except Fenced:
            await self._table.check_ours(session)
        except SessionLost:
            await self._table.lose(session)

    async def _keep(self, session: LiveSession) -> None:
        try:
            await self._table.keep(session)
        except SessionLost:
            await self._table.lose(session)

    async def _tidy(self) -> None:
        """Also end records without a session: Redis may have stored one late, after a freeze."""
        await self._registry.tidy()
        here = {session.record.session_id for session in self._table.sessions()}
        for record in await self._registry.live():
            if record.session_id not in here and time.time() - record.created_at > HALF_MADE_S:
                await self._table.abandon(record)
