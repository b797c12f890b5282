"""Where the boxes of new sessions come from: a pool for each environment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.pool import BoxNotes, Pool
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box, BoxSpec, Runtime


class PooledBoxes:
    """Implements BoxSource. Use as an async context manager; warm boxes are destroyed on exit,
    since the next process can make new ones."""

    def __init__(
        self,
        runtime: Runtime,
        spec: BoxSpec,
        settings: PoolSettings,
        *,
        environments: Mapping[str, str],
        epoch: Callable[[], int],
        room: Callable[[], int],
        notes: BoxNotes,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._epoch = epoch
        self._stack = contextlib.AsyncExitStack()
        starts = asyncio.Semaphore(settings.concurrency)

        def pool_of(spec: BoxSpec, settings: PoolSettings) -> Pool:
            return Pool(
                runtime,
                spec,
                settings,
                connect=self.connect,
                room=room,
                notes=notes,
                slots=starts,
            )

        self._pool = pool_of(spec, settings)
        # Boxes of other environments are made on demand, by pools that keep none warm.
        none_warm = replace(settings, size=0, min_size=0, max_size=0)
        self._pools = {
            name: pool_of(replace(spec, image=image), none_warm)
            for name, image in environments.items()
        }

    async def __aenter__(self) -> Self:
        for pool in self._pools.values():
            await self._stack.enter_async_context(pool)
        await self._pool.__aenter__()
        self._stack.push_async_callback(self._close_pool)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _close_pool(self) -> None:
        await self._pool.close(destroy=True)

    @property
    def warm(self) -> int:
        return self._pool.warm

    def failures(self) -> dict[str, str]:
        """Why boxes cannot be started now, by environment; "" is the default one."""
        all_of_them = {"": self._pool, **self._pools}
        return {name: pool.failure for name, pool in all_of_them.items() if pool.failure}

    def connect(self, box: Box) -> BoxAgent:
        """An agent for a box, with this worker's epoch."""
        return box.agent(epoch=self._epoch(), deadman_s=self._spec.deadman_s)

    async def found(self) -> list[Box]:
        """Every running box of this worker, including those of earlier processes."""
        return await self._runtime.boxes(self._spec.owner)

    @property
    def build(self) -> str:
        return self._runtime.build

    def adopt(self, box: Box, agent: BoxAgent) -> None:
        """Add a warm box of an earlier process to the pool."""
        self._pool.adopt(box, agent)

    async def claim(
        self, environment: str | None, state: Mapping[str, Any]
    ) -> tuple[Box, BoxAgent]:
        """A box for a new session: a warm one, or a new one for another environment."""
        pool = self._pool if environment is None else self._pools.get(environment)
        if pool is None:
            raise self._unknown(environment)
        made = await pool.claim(state)
        return made.box, made.agent

    def _unknown(self, environment: str | None) -> InvalidRequest:
        if not self._runtime.has_images:
            return InvalidRequest(
                f"environment {environment!r}: {self._runtime.name} boxes use the host's programs,"
                " not an image; omit `environment`, or use docker"
            )
        known = ", ".join(sorted(self._pools))
        return InvalidRequest(
            f"unknown environment {environment!r}: SANDBOX_ENVIRONMENTS "
            + (f"has {known}" if known else "is empty")
        )
