"""The worker: owns the boxes of one machine and looks after them for as long as it runs.

On start it takes over what a worker before it has left: sessions and warm boxes with their clocks.
On stop it leaves them to the next one, unless it is told to destroy them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

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
from sandbox_server.sessions.lease import Lease, Load
from sandbox_server.sessions.live import LiveSession, record_from_state
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.table import SessionTable

log = structlog.get_logger()

TICK_S = 5.0
ADOPT_S = 15.0


class Worker:
    """Use as an async context manager."""

    def __init__(
        self,
        runtime: Runtime,
        spec: BoxSpec,
        registry: Registry,
        lease: Lease,
        *,
        role: str = "standalone",
        pool: PoolSettings,
        environments: dict[str, str],
        idle_timeout_s: float,
        capacity: int,
        destroy_on_exit: bool = False,
        keep_warm: bool = True,
        tick_s: float = TICK_S,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._environments = environments
        self._capacity = capacity
        self._lease = lease
        self._role = role
        self._destroy = destroy_on_exit
        self._keep_warm = keep_warm
        self._tick_s = tick_s
        self._began = time.monotonic()
        self._stack = contextlib.AsyncExitStack()
        self._idle_timeout_s = idle_timeout_s
        self.table = SessionTable(
            registry, lease, self, idle_timeout_s=idle_timeout_s, capacity=capacity
        )
        self._pool = Pool(
            runtime, spec, pool, connect=self._connect, room=lambda: capacity - len(self.table)
        )

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
        self._stack.push_async_callback(self._let_go)
        await self._adopt()
        await self._pool.__aenter__()
        self._stack.push_async_callback(self._close_pool)
        watching = asyncio.create_task(self._watch())
        self._stack.push_async_callback(_cancelled, watching)

    async def _close_pool(self) -> None:
        keep = self._keep_warm and not (self._destroy or self._lease.leaves)
        await self._pool.close(destroy=not keep)

    async def _let_go(self) -> None:
        for session in self.table.sessions():
            if self._destroy:
                await self.table.cleanup(session)
            else:
                await session.let_go()

    def _connect(self, box: Box) -> WardenClient:
        return WardenClient(box, epoch=self._lease.epoch, deadman_s=self._spec.deadman_s)

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
        await asyncio.gather(*(self._take_over(box) for box in boxes))
        if boxes:
            log.info("worker.adopted", boxes=len(boxes), sessions=len(self.table))

    async def _take_over(self, box: Box) -> None:
        """A box is a session's, or warm. One that never answers is half made, and goes."""
        warden = self._connect(box)
        try:
            async with asyncio.timeout(ADOPT_S):
                state = await warden.state()
            record = record_from_state(
                state.state, box.id, worker=self._lease.worker, epoch=self._lease.epoch
            )
        except (SandboxError, TimeoutError, KeyError, TypeError, ValueError) as exc:
            log.warning("box.not_adopted", box=box.id, why=str(exc))
            await warden.close()
            with contextlib.suppress(SandboxError):
                await box.destroy()
            return
        if record is None:
            self._pool.adopt(box, warden)
            return
        idle_timeout_s = float(state.state.get("idle_timeout_s", self._idle_timeout_s))
        session = await self.table.adopt(
            record, box, warden, idle_timeout_s=idle_timeout_s, idle_s=state.idle_s
        )
        for command in state.commands:
            if session is not None and command.running:
                session.watch(command.command_id, clock=time.monotonic)

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

    def load(self) -> Load:
        return Load(sessions=len(self.table), warm=self._pool.warm)

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
            role=self._role,
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
