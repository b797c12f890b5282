"""The worker: owns the boxes of one machine while it runs.

On start it adopts the sessions and warm boxes of the previous worker, with their idle times. On
stop it leaves its sessions for the next one, unless destroy_on_exit is set; warm boxes are
destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import Health
from sandbox_server import __version__
from sandbox_server.pool import PooledBoxes, PoolSettings
from sandbox_server.runtime.agent import Fenced
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.sessions.adoption import AT_ONCE, Adoption
from sandbox_server.sessions.lease import Lease, Load
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionMaker
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.table import Occupancy, SessionTable
from sandbox_server.sessions.watch import Watch

TICK_S = 5.0
FENCED_S = 1.0


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
        environments: Mapping[str, str],
        idle_timeout_s: float,
        capacity: int,
        destroy_on_exit: bool = False,
        tick_s: float = TICK_S,
    ) -> None:
        self._role = role
        self._owner = spec.owner
        self._runtime_name = runtime.name
        self._destroy = destroy_on_exit
        self._began = time.monotonic()
        self._stack = contextlib.AsyncExitStack()
        self._occupancy = Occupancy(capacity)
        self._boxes = PooledBoxes(
            runtime,
            spec,
            pool,
            environments=environments,
            epoch=lambda: lease.epoch,
            room=lambda: self._occupancy.room,
            notes=registry.ledger,
        )
        maker = SessionMaker(self._boxes, lease, registry.ledger, idle_timeout_s=idle_timeout_s)
        self.table = SessionTable(registry, lease, maker, self._occupancy)
        self._adoption = Adoption(
            self.table, maker, registry, lease, self._boxes, idle_timeout_s=idle_timeout_s
        )
        self._watch = Watch(self.table, registry, deadman_s=spec.deadman_s, tick_s=tick_s)

    async def __aenter__(self) -> Worker:
        try:
            self._stack.push_async_callback(self._let_go)
            await self._adoption.run()
            await self._stack.enter_async_context(self._boxes)
            await self._stack.enter_async_context(self._watch)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _let_go(self) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def let_go(session: LiveSession) -> None:
            async with slots:
                if self._destroy and not await _is_fenced(session):
                    await self.table.cleanup(session)
                else:
                    await session.let_go()

        await asyncio.gather(*map(let_go, self.table.sessions()))

    def load(self) -> Load:
        return Load(sessions=len(self.table), warm=self._boxes.warm)

    def health(self) -> Health:
        broken = self._boxes.failures()
        failure, full = broken.pop("", None), self.table.room == 0
        checks = {
            "runtime": failure or "ok",
            "capacity": "full" if full else "ok",
            **{f"environment {name}": why for name, why in broken.items()},
        }
        return Health(
            status="unhealthy" if failure and not self._boxes.warm else
            "degraded" if failure or full or broken else "healthy",
            role=self._role,
            worker_id=self._owner,
            runtime=self._runtime_name,
            pool_size=self._boxes.warm,
            active_sessions=len(self.table),
            capacity=self._occupancy.capacity,
            version=__version__,
            uptime_s=round(time.monotonic() - self._began, 3),
            checks=checks,
        )  # fmt: skip


async def _is_fenced(session: LiveSession) -> bool:
    """Whether another process has taken the box over; then we must not destroy it."""
    try:
        async with asyncio.timeout(FENCED_S):
            await session.agent.ping()
    except Fenced:
        return True
    except (SandboxError, TimeoutError):
        pass
    return False
