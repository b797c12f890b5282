"""The boxes of several runtimes in one worker: a PooledBoxes each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sandbox_sdk.protocol.models import LimitValues
from sandbox_server.pool.source import Environments, PooledBoxes
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box, BoxSpec, BoxVolume, DiskImage, Runtime
from sandbox_server.runtime.box_network import BoxNetwork


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A runtime under the name by which sessions ask for it, and what its boxes are made from."""

    name: str
    runtime: Runtime
    spec: BoxSpec
    environments: Environments = dict


class ProviderBoxes:
    """Implements BoxSource. Use as an async context manager."""

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
    def default(self) -> PooledBoxes:
        return next(iter(self.sources.values()))

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
        return await self.sources[provider].no_volumes()

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
