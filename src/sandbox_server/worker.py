"""The worker: owns the boxes of one machine while it runs.

On start it adopts the sessions and warm boxes of the previous worker, with their idle times. On
stop it leaves its sessions for the next one, unless destroy_on_exit is set; warm boxes are
destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import COMMAND_TIMEOUT_S, Health
from sandbox_server import __version__
from sandbox_server.checkpoints.checkpoints import Checkpoints
from sandbox_server.checkpoints.points import Points
from sandbox_server.events.log import EventLog
from sandbox_server.metrics.recorder import NO_METRICS, Metrics, Readings
from sandbox_server.network.networks import Networks
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import Environments, PooledBoxes, Provider, ProviderBoxes
from sandbox_server.runtime.agent import Fenced
from sandbox_server.runtime.base import BoxSpec, Enforcement, Runtime
from sandbox_server.sessions.adoption import AT_ONCE, Adoption
from sandbox_server.sessions.background import SessionQuota
from sandbox_server.sessions.counting import Usage
from sandbox_server.sessions.keeping import Keeper
from sandbox_server.sessions.lease import Lease, Load
from sandbox_server.sessions.ledger import Sharing
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionMaker
from sandbox_server.sessions.notes import SessionNotes
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.rules import SessionRules, limit_values
from sandbox_server.sessions.share import Occupancy
from sandbox_server.sessions.table import SessionTable
from sandbox_server.sessions.takeover import Takeover
from sandbox_server.sessions.watch import Watch
from sandbox_server.storage.history import Journal
from sandbox_server.volumes.volumes import Volumes

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
        environments: Environments = dict,
        idle_timeout_s: float,
        capacity: int | Occupancy,
        destroy_on_exit: bool = False,
        tick_s: float = TICK_S,
        owners: Sequence[str] = (),
        name: str = "",
        others: Sequence[Provider] = (),
        rules: SessionRules | None = None,
        journal: Journal | None = None,
        checkpoints: Checkpoints | None = None,
        points: Points | None = None,
        volumes: Volumes | None = None,
        networks: Networks | None = None,
        quota: SessionQuota | None = None,
        metrics: Metrics = NO_METRICS,
        usage: Usage | None = None,
    ) -> None:
        """capacity: an Occupancy where several processes share it. owners: see PooledBoxes.
        name: by which sessions ask for the runtime, unless it is its own. others: further runtimes
        that they can ask for. rules: without, sessions have what the spec says. journal: remembers
        the sessions. checkpoints: keep them; without, there are none. points: those of
        sessions with history. volumes: that they can have. networks: the same as
        the rules'. quota: of tenants. usage: counts what sessions use; the worker runs it."""
        name = name or runtime.name
        self._checkpoints = "off" if checkpoints is None else checkpoints.about
        self._volumes = "" if volumes is None else volumes.about
        self._role = role
        self._owner = spec.owner
        self._runtime_name = name
        self._destroy = destroy_on_exit
        self._networks = networks
        self._began = time.monotonic()
        self._stack = contextlib.AsyncExitStack()
        self._occupancy = capacity if isinstance(capacity, Occupancy) else Occupancy(capacity)
        shared = runtime.shared or any(each.runtime.shared for each in others)
        self._sharing = Sharing(registry.ledger, lease.worker, on=shared)
        none_warm = replace(pool, size=0, min_size=0, max_size=0)
        default = Provider(name=name, runtime=runtime, spec=spec, environments=environments)
        self._boxes = ProviderBoxes(
            {
                each.name: PooledBoxes(
                    each.runtime,
                    each.spec,
                    pool if each is default else none_warm,
                    environments=each.environments,
                    epoch=lambda: lease.epoch,
                    room=lambda: self._occupancy.room,
                    notes=registry.ledger,
                    owners=owners,
                    metrics=metrics,
                    provider=each.name,
                    warmed=self._sharing.warmed if each.runtime.shared else None,
                )
                for each in (default, *others)
            }
        )
        rules = rules or SessionRules(
            default=limit_values(spec.limits, command_timeout_s=COMMAND_TIMEOUT_S),
            idle_timeout_s=idle_timeout_s,
            providers=dict.fromkeys(self._boxes.sources, Enforcement()),
            networks=networks,
        )
        maker = self._maker = SessionMaker(
            self._boxes, lease, registry.ledger, rules, volumes, metrics, self._sharing
        )
        events = EventLog(spec.owner)
        self.table = SessionTable(
            registry,
            lease,
            maker,
            self._occupancy,
            SessionNotes(journal, metrics, events),
            Keeper(checkpoints, points, metrics, events),
            networks,
            quota,
            usage,
        )
        metrics.watch(self._readings)
        self._adoption = Adoption(
            self.table,
            maker,
            registry,
            lease,
            self._boxes.sources,
            idle_timeout_s=idle_timeout_s,
            rules=rules,
        )
        takeover = Takeover(self._adoption, self.table, registry, lease, self._boxes.sources)
        self.table.take_over = takeover.session if shared else None
        self._watch = Watch(
            self.table,
            registry,
            deadman_s=spec.deadman_s,
            tick_s=tick_s,
            sweep=takeover.sweep if shared else None,
        )

    async def __aenter__(self) -> Worker:
        try:
            self._stack.push_async_callback(self._sharing.close)
            self._stack.push_async_callback(self._maker.close)
            self._stack.push_async_callback(self._let_go)
            await self._adoption.run()
            self.table.recount()
            await self._stack.enter_async_context(self._boxes)
            await self._stack.enter_async_context(self._watch)
            if self.table.usage is not None:
                self.table.usage.watch(self.table.sessions)
                await self._stack.enter_async_context(self.table.usage)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _let_go(self) -> None:
        if self.table.usage is not None:
            await self.table.usage.read(self.table.sessions())
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

    def _readings(self) -> Readings:
        sources = self._boxes.sources
        return Readings(
            sessions=len(self.table),
            capacity=self._occupancy.capacity,
            warm={name: source.warm for name, source in sources.items()},
            starting={name: source.starting for name, source in sources.items()},
        )

    def health(self) -> Health:
        left = self._occupancy.memory_left
        full = "full" if self.table.room == 0 else "ok" if left != 0 else "no memory left"
        checks = {"runtime": "ok", "capacity": full, **self._boxes.checks()}
        if self._networks is not None and self._networks.problem:
            checks["network presets"] = self._networks.problem
        unable = checks["runtime"] != "ok" and not self._boxes.warm
        well = all(state == "ok" for state in checks.values())
        return Health(
            status="unhealthy" if unable else "healthy" if well else "degraded",
            role=self._role,
            worker_id=self._owner,
            runtime=self._runtime_name,
            pool_size=self._boxes.warm,
            active_sessions=len(self.table),
            capacity=self._occupancy.capacity,
            version=__version__,
            uptime_s=round(time.monotonic() - self._began, 3),
            checks=checks,
            providers=list(self._boxes.sources),
            checkpoints=self._checkpoints,
            volumes=self._volumes,
        )


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
