"""The worker: owns the boxes of one machine and looks after them for as long as it runs.

On start it takes over what a worker before it has left: sessions and warm boxes with their clocks.
On stop it leaves them to the next one, unless it is told to destroy them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import (
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
)
from sandbox_sdk.protocol.models import Health
from sandbox_server import __version__
from sandbox_server.pool import Pool, PoolSettings
from sandbox_server.runtime.base import Box, BoxSpec, Runtime
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.sessions.live import LiveSession, record_from_state
from sandbox_server.sessions.registry import SqliteRegistry
from sandbox_server.sessions.table import SessionTable

log = structlog.get_logger()

TICK_S = 5.0
ADOPT_S = 15.0
REMEMBER_S = 7 * 86400.0
"""How long an ended session is remembered, so that its thread is told what became of it."""


class Worker:
    """Use as an async context manager."""

    def __init__(
        self,
        runtime: Runtime,
        spec: BoxSpec,
        *,
        pool: PoolSettings,
        environments: dict[str, str],
        idle_timeout_s: float,
        capacity: int,
        state_dir: Path,
        destroy_on_exit: bool = False,
        tick_s: float = TICK_S,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._environments = environments
        self._capacity = capacity
        self._state_dir = state_dir
        self._destroy = destroy_on_exit
        self._tick_s = tick_s
        self._began = time.monotonic()
        self._stack = contextlib.AsyncExitStack()
        self._epoch = 0
        self._pool_settings = pool
        self._idle_timeout_s = idle_timeout_s
        self.table: SessionTable
        self._pool: Pool

    async def __aenter__(self) -> Worker:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._stack.enter_context(_alone(self._state_dir, self._spec.owner))
        registry = SqliteRegistry(self._state_dir / f"{self._spec.owner}.sqlite")
        self._stack.callback(registry.close)
        self._epoch = registry.next_epoch()
        registry.forget_before(time.time() - REMEMBER_S)
        self.table = SessionTable(
            registry, self, idle_timeout_s=self._idle_timeout_s, capacity=self._capacity
        )
        self._pool = Pool(
            self._runtime,
            self._spec,
            self._pool_settings,
            connect=self._connect,
            room=lambda: self._capacity - len(self.table),
        )
        self._stack.push_async_callback(self._let_go)
        await self._adopt()
        await self._pool.__aenter__()
        self._stack.push_async_callback(lambda: self._pool.close(destroy=self._destroy))
        watching = asyncio.create_task(self._watch())
        self._stack.push_async_callback(_cancelled, watching)

    async def _let_go(self) -> None:
        for session in self.table.sessions():
            if self._destroy:
                await self.table.cleanup(session)
            else:
                await session.warden.close()

    def _connect(self, box: Box) -> WardenClient:
        return WardenClient(box, epoch=self._epoch, deadman_s=self._spec.deadman_s)

    async def claim(self, environment: str | None) -> tuple[Box, WardenClient]:
        """A box for a new session: a warm one, or a new one of another environment."""
        if environment is None:
            warm = await self._pool.claim()
            return warm.box, warm.warden
        image = self._environments.get(environment)
        if image is None:
            known = ", ".join(sorted(self._environments)) or "none is configured"
            raise InvalidRequest(f"no environment {environment!r}; there is: {known}")
        box = await self._runtime.create(replace(self._spec, image=image))
        warden = self._connect(box)
        try:
            await warden.connect()
        except BaseException:
            await asyncio.shield(box.destroy())
            raise
        return box, warden

    # Adoption

    async def _adopt(self) -> None:
        boxes = await self._runtime.boxes(self._spec.owner)
        found = await asyncio.gather(*(self._take_over(box) for box in boxes))
        lost = self.table.tell_lost({session_id for session_id in found if session_id})
        if boxes or lost:
            log.info("worker.adopted", boxes=len(boxes), sessions=len(self.table), lost=lost)

    async def _take_over(self, box: Box) -> str | None:
        """The session a box belongs to. One that never answers is half made, and goes."""
        warden = self._connect(box)
        try:
            async with asyncio.timeout(ADOPT_S):
                state = await warden.state()
            record = record_from_state(state.state, box.id)
        except (SandboxError, TimeoutError, KeyError, TypeError, ValueError) as exc:
            log.warning("box.not_adopted", box=box.id, why=str(exc))
            await warden.close()
            with contextlib.suppress(SandboxError):
                await box.destroy()
            return None
        if record is None:
            self._pool.adopt(box, warden)
            return None
        idle_timeout_s = float(state.state.get("idle_timeout_s", self._idle_timeout_s))
        self.table.adopt(
            record,
            box,
            warden,
            idle_timeout_s=idle_timeout_s,
            idle_s=state.idle_s,
            environment=state.state.get("environment"),
        )
        return record.session_id

    # Looking after sessions

    async def _watch(self) -> None:
        """Keep the dead-man's switches quiet, end what is idle, notice what is gone."""
        ping_every_s = max(self._spec.deadman_s / 4, self._tick_s)
        next_ping = time.monotonic() + ping_every_s
        while True:
            await asyncio.sleep(self._tick_s)
            now = time.monotonic()
            pinging, next_ping = now >= next_ping, max(next_ping, now)
            if pinging:
                next_ping = now + ping_every_s
            for session in self.table.sessions():
                await self._look_at(session, pinging=pinging)

    async def _look_at(self, session: LiveSession, *, pinging: bool) -> None:
        try:
            if session.is_idle(time.monotonic()):
                await self.table.expire(session)
            elif pinging:
                await session.warden.ping()
        except SessionLost:
            await self.table.lose(session)
        except RuntimeUnavailable as exc:
            log.warning("session.unreachable", thread=session.record.thread_id, why=exc.message)
        except Exception:
            log.exception("session.watch_failed", thread=session.record.thread_id)

    def health(self) -> Health:
        failure = self._pool.failure
        full = self.table.room == 0
        checks = {
            "runtime": failure or "ok",
            "capacity": "full" if full else "ok",
        }
        return Health(
            status="unhealthy" if failure and not self._pool.warm else
            "degraded" if failure or full else "healthy",
            role="standalone",
            worker_id=self._spec.owner,
            runtime=self._runtime.name,
            pool_size=self._pool.warm,
            active_sessions=len(self.table),
            capacity=self._capacity,
            version=__version__,
            uptime_s=round(time.monotonic() - self._began, 3),
            checks=checks,
        )  # fmt: skip


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _alone(folder: Path, owner: str) -> Iterator[None]:
    """Two servers of one name would take each other's boxes. Raises RuntimeUnavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / f"{owner}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise RuntimeUnavailable(
            f"another server named {owner} uses {folder}; stop it, or set SANDBOX_WORKER_ID"
        ) from None
    try:
        yield
    finally:
        os.close(fd)
