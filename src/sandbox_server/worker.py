"""The worker: owns the boxes of one machine and looks after them for as long as it runs.

On start it takes over what a worker before it has left: sessions and warm boxes with their clocks.
On stop it leaves sessions to the next one, unless it is told to destroy them. Warm boxes go.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from sandbox_server.sessions.live import LiveSession, kept_in, record_from_state
from sandbox_server.sessions.registry import Record, Registry
from sandbox_server.sessions.table import SessionTable

log = structlog.get_logger()

TICK_S = 5.0
ADOPT_S = 15.0
AT_ONCE = 16
"""How many boxes are taken over or let go of at a time: an engine asked for more gets slower."""


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
        tick_s: float = TICK_S,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._environments = environments
        self._capacity = capacity
        self._lease = lease
        self._role = role
        self._destroy = destroy_on_exit
        self._tick_s = tick_s
        self._began = time.monotonic()
        self._stack = contextlib.AsyncExitStack()
        self._looking_at: set[str] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._registry = registry
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
        await self._adopt({record.box_id: record for record in await self._registry.live()})
        await self._pool.__aenter__()
        self._stack.push_async_callback(self._close_pool)
        watching = asyncio.create_task(self._watch())
        self._stack.push_async_callback(_cancelled, watching)

    async def _close_pool(self) -> None:
        """Nothing is in a warm box that a next worker could not make anew."""
        await self._pool.close(destroy=True)

    async def _let_go(self) -> None:
        async def let_go(session: LiveSession) -> None:
            async with self._slots:
                if self._destroy:
                    await self.table.cleanup(session)
                else:
                    await session.let_go()

        await asyncio.gather(*map(let_go, self.table.sessions()))

    def _connect(self, box: Box) -> WardenClient:
        return WardenClient(box, epoch=self._lease.epoch, deadman_s=self._spec.deadman_s)

    async def claim(
        self, environment: str | None, state: Mapping[str, Any]
    ) -> tuple[Box, WardenClient]:
        """A box for a new session: a warm one, or a new one of another environment."""
        if environment is None:
            warm = await self._pool.claim(state)
            return warm.box, warm.warden
        image = self._environments.get(environment)
        if image is None:
            known = ", ".join(sorted(self._environments)) or "none"
            raise InvalidRequest(
                f"unknown environment {environment!r}; configured in SANDBOX_ENVIRONMENTS: {known}"
                if self._runtime.has_images
                else f"environment {environment!r}: {self._runtime.name} boxes have the programs of"
                " the server's machine, not those of an image; leave it out, or use docker"
            )
        box = await self._runtime.create(replace(self._spec, image=image))
        warden = self._connect(box)
        try:
            await warden.set_state(state)
        except BaseException:
            await asyncio.shield(box.destroy())
            raise
        return box, warden

    # Adoption

    async def _adopt(self, known: dict[str, Record]) -> None:
        """known: the sessions that were live when the worker before this one ended, by box."""
        boxes = await self._runtime.boxes(self._spec.owner)
        await asyncio.gather(*(self._take_over(box, known.get(box.id)) for box in boxes))
        if boxes or known:
            log.info("worker.adopted", boxes=len(boxes), sessions=len(self.table), of=len(known))

    async def _take_over(self, box: Box, known: Record | None) -> None:
        """A box is a session's, or warm. One that does not answer and is nobody's is half made, and
        goes; a session that cannot be reached is not lost."""
        warden = self._connect(box)
        try:
            async with self._slots, asyncio.timeout(ADOPT_S):
                state = await warden.state()
            record = record_from_state(
                state.state, box.id, worker=self._lease.worker, epoch=self._lease.epoch
            )
            idle_timeout_s, environment = kept_in(state.state, self._idle_timeout_s)
        except (RuntimeUnavailable, TimeoutError) as exc:
            why = str(exc) or f"no answer within {ADOPT_S:g} s"
            if known is None:
                await _give_up(box, warden, why)
                return
            log.warning("session.unreachable", thread=known.thread_id, why=why)
            known = replace(known, worker=self._lease.worker, epoch=self._lease.epoch)
            await self.table.adopt(
                known, box, warden, idle_timeout_s=self._idle_timeout_s, idle_s=0.0, met=False
            )
            return
        except (SandboxError, KeyError, TypeError, ValueError) as exc:
            await _give_up(box, warden, str(exc))
            return
        if record is None:
            self._pool.adopt(box, warden)
            return
        session = await self.table.adopt(
            record,
            box,
            warden,
            idle_timeout_s=idle_timeout_s,
            idle_s=state.idle_s,
            environment=environment,
        )
        for command in state.commands:
            if session is not None and command.running:
                session.watch(command.command_id, clock=time.monotonic)

    # Looking after sessions

    async def _watch(self) -> None:
        """Keep the dead-man's switches quiet, end what is idle, notice what is gone. Every session
        is looked at by itself: one whose box hangs holds up nobody else."""
        ping_every_s = max(self._spec.deadman_s / 4, self._tick_s)
        next_ping = time.monotonic() + ping_every_s
        async with asyncio.TaskGroup() as looks:
            while True:
                await asyncio.sleep(self._tick_s)
                now = time.monotonic()
                pinging = now >= next_ping
                if pinging:
                    next_ping = now + ping_every_s
                for session in self.table.sessions():
                    known = session.record.session_id in self._looking_at
                    if not known and (pinging or session.is_idle(now)):
                        looks.create_task(self._look_at(session))

    async def _look_at(self, session: LiveSession) -> None:
        self._looking_at.add(session.record.session_id)
        try:
            if session.is_idle(time.monotonic()):
                await self.table.expire(session)
            else:
                await session.warden.ping()
        except SessionLost:
            await self.table.lose(session)
        except RuntimeUnavailable as exc:
            log.warning("session.unreachable", thread=session.record.thread_id, why=exc.message)
        except Exception:
            log.exception("session.watch_failed", thread=session.record.thread_id)
        finally:
            self._looking_at.discard(session.record.session_id)

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


async def _give_up(box: Box, warden: WardenClient, why: str) -> None:
    log.warning("box.not_adopted", box=box.id, why=why)
    await warden.close()
    with contextlib.suppress(SandboxError):
        await box.destroy()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
