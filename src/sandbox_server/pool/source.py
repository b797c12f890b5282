"""Where the boxes of new sessions come from: a pool for each environment of each provider."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import LimitValues
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.pool import BoxNotes, Pool, Warmed
from sandbox_server.pool.warm import Ready
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import (
    Box,
    BoxSpec,
    BoxVolume,
    DiskImage,
    Limits,
    Runtime,
    SharedBox,
)
from sandbox_server.runtime.box_network import BoxNetwork
from sandbox_server.tasks import stop, until_next

_FOLLOW_S = 1.0
"""How often to look whether the environments have changed, besides with every claim."""


@dataclass(frozen=True, kw_only=True)
class PooledEnvironment:
    """What the pool of an environment is made of."""

    declared: object
    """Of two that differ in nothing else, the pool is the same."""
    ready: Ready = field(compare=False)
    warm: int = 0
    """Boxes kept warm; others are made on demand."""
    limits: LimitValues | None = None
    """Left out: those of the usual boxes."""
    network: BoxNetwork | None = None
    """Left out: that of the usual boxes."""


Environments = Callable[[], Mapping[str, PooledEnvironment]]
"""Those there are now, by name."""


class PooledBoxes:
    """Implements BoxSource. Use as an async context manager; warm boxes are destroyed on exit,
    since the next process can make new ones."""

    def __init__(
        self,
        runtime: Runtime,
        spec: BoxSpec,
        settings: PoolSettings,
        *,
        environments: Environments,
        epoch: Callable[[], int],
        room: Callable[[], int],
        notes: BoxNotes,
        owners: Sequence[str] = (),
        metrics: Metrics = NO_METRICS,
        provider: str = "",
        warmed: Warmed | None = None,
    ) -> None:
        """owners: all labels that boxes of earlier processes may have, instead of the spec's.
        provider, warmed: see Pool."""
        self.runtime = runtime
        self._spec = spec
        self._owners = owners or (spec.owner,)
        self._epoch = epoch
        self._stack = contextlib.AsyncExitStack()
        self._settings = settings
        self._environments = environments
        self._pool_of = partial(
            Pool, runtime, connect=self.connect, room=room, notes=notes, metrics=metrics,
            slots=asyncio.Semaphore(settings.concurrency), provider=provider, warmed=warmed,
        )  # fmt: skip
        self._pool = self._pool_of(spec, settings)
        self._pools: dict[str, tuple[PooledEnvironment, Pool]] = {}
        self._retired: list[Pool] = []
        """Of environments that have changed or gone, until their last claim is over."""

    def _pool_for(self, given: PooledEnvironment) -> Pool:
        spec = self._spec
        if given.limits is not None:
            spec = replace(spec, limits=_box_limits(spec.limits, given.limits))
        if given.network is not None:
            spec = spec.on(given.network)
        sizes = {"size": given.warm, "min_size": given.warm, "max_size": given.warm}
        return self._pool_of(spec, replace(self._settings, **sizes), ready=given.ready)

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self._close_all)
        await self._follow()
        await self._pool.__aenter__()
        following = asyncio.create_task(self._keep_following())
        self._stack.push_async_callback(stop, following)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _close_all(self) -> None:
        for pool in (*self._all().values(), *self._retired):
            await pool.close(destroy=True)

    async def _keep_following(self) -> None:
        while True:
            await asyncio.sleep(until_next(_FOLLOW_S))
            await self._follow()
            for pool in [pool for pool in self._retired if not pool.claiming]:
                self._retired.remove(pool)
                await pool.close(destroy=True)

    async def _follow(self) -> None:
        """Have a pool for every environment as it is declared now."""
        wanted = self._environments()
        for name, (given, pool) in list(self._pools.items()):
            if wanted.get(name) != given:
                del self._pools[name]
                self._retired.append(pool)
        for name, given in wanted.items():
            if name not in self._pools:
                pool = self._pool_for(given)
                self._pools[name] = given, pool
                await pool.__aenter__()

    @property
    def warm(self) -> int:
        return sum(pool.warm for pool in self._all().values())

    @property
    def starting(self) -> int:
        return sum(pool.starting for pool in self._all().values())

    def failures(self) -> dict[str, str]:
        """Why boxes cannot be started now, by environment; "" is the default one."""
        return {name: pool.failure for name, pool in self._all().items() if pool.failure}

    def _all(self) -> dict[str, Pool]:
        return {"": self._pool, **{name: pool for name, (_, pool) in self._pools.items()}}

    def connect(self, box: Box) -> BoxAgent:
        """An agent for a box, with this worker's epoch."""
        return box.agent(epoch=self._epoch(), deadman_s=self._spec.deadman_s)

    async def found(self) -> list[Box]:
        """Every running box of this worker, including those of earlier processes."""
        return [box for owner in self._owners for box in await self.runtime.boxes(owner)]

    @property
    def shared(self) -> bool:
        return self.runtime.shared

    async def of_others(self, workers: Sequence[str]) -> Sequence[SharedBox]:
        """The boxes of other workers, to be taken over."""
        return await self.runtime.shared_boxes(workers)

    async def one_of_others(self, box_id: str) -> SharedBox | None:
        return await self.runtime.shared_box(box_id)

    @property
    def build(self) -> str:
        return self._pool.build

    def adopt(self, box: Box, agent: BoxAgent) -> None:
        """Add a warm box of an earlier process to the pool."""
        self._pool.adopt(box, agent)

    async def claim(
        self,
        environment: str | None,
        limits: LimitValues,
        state: Mapping[str, Any],
        disk: DiskImage | None = None,
        volumes: Sequence[BoxVolume] = (),
        network: BoxNetwork | None = None,
    ) -> tuple[Box, BoxAgent]:
        """A box for a new session: a warm one, or a new one for another environment, limits or
        network, or that begins with a disk or has volumes."""
        pool = self._pool
        if environment is not None:
            await self._follow()
            if environment not in self._pools:
                known = ", ".join(sorted(self._pools))
                there = f"are {known}" if known else "is none; omit `environment`"
                raise InvalidRequest(f"unknown environment {environment!r}: there {there}")
            _, pool = self._pools[environment]
        given = _box_limits(self._spec.limits, limits)
        made = await pool.claim(state, limits=given, network=network, disk=disk, volumes=volumes)
        return made.box, made.agent


def _box_limits(base: Limits, values: LimitValues) -> Limits:
    return replace(
        base,
        memory_bytes=values["memory"],
        cpus=values["cpus"],
        pids=values["pids"],
        disk_bytes=values["disk"],
    )


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A runtime under the name by which sessions ask for it, and what its boxes are made from."""

    name: str
    runtime: Runtime
    spec: BoxSpec
    environments: Environments = dict


class ProviderBoxes:
    """The boxes of several runtimes in one worker. Implements BoxSource. Use as an async context
    manager."""

    def __init__(self, sources: Mapping[str, PooledBoxes]) -> None:
        """By provider; the first is the default."""
        self.sources = sources
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        for source in self.sources.values():
            await self._stack.enter_async_context(source)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    @property
    def warm(self) -> int:
        return sum(source.warm for source in self.sources.values())

    async def claim(
        self,
        provider: str,
        environment: str | None,
        limits: LimitValues,
        state: Mapping[str, Any],
        disk: DiskImage | None = None,
        volumes: Sequence[BoxVolume] = (),
        network: BoxNetwork | None = None,
    ) -> tuple[Box, BoxAgent]:
        source = self.sources[provider]
        return await source.claim(environment, limits, state, disk, volumes, network)

    async def no_volumes(self, provider: str) -> str:
        return await self.sources[provider].runtime.no_volumes()

    def checks(self) -> dict[str, str]:
        """By what is looked at, `ok` or why boxes cannot be started now: the default provider as
        `runtime`, the others by name, and environments that fail."""
        found = {"runtime": "ok"}
        for index, (name, source) in enumerate(self.sources.items()):
            failures = source.failures()
            own = f"provider {name}" if index else "runtime"
            found[own] = failures.pop("", "ok")
            where = f" on {name}" if index else ""
            found |= {f"environment {each}{where}": why for each, why in failures.items()}
        return found
