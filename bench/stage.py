"""Where the contest takes place: runtimes, boxes and plain containers, and their removal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiodocker
from aiodocker.containers import DockerContainer

from bench import results as r
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box, BoxSpec, Limits, Runtime
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.docker import DockerRuntime

IMAGE = "sandbox-secure:latest"
GVISOR_NAME = "runsc"
LABEL = "agent-sandbox-bench"
_LIFE_S = 3600
"""Whatever happens to us, nothing of ours lives longer than this."""


class Stage:
    """Made by `open_stage`. Boxes and containers are made for an `async with`."""

    def __init__(
        self, runtimes: dict[str, Runtime], docker: aiodocker.Docker | None, state_dir: Path
    ) -> None:
        self.runtimes = runtimes
        self.docker = docker
        self.state_dir = state_dir
        self.run_id = f"bench-{uuid.uuid4().hex[:8]}"
        self.owners = [self.run_id]
        """Whose boxes are cleared away in the end."""

    def __repr__(self) -> str:
        return f"<Stage {self.run_id} {', '.join(self.runtimes)}>"

    def spec(self, limits: Limits | None = None) -> BoxSpec:
        return BoxSpec(
            owner=self.run_id, image=IMAGE, limits=limits or Limits(), deadman_s=float(_LIFE_S)
        )

    @asynccontextmanager
    async def made_box(self, runtime: str, limits: Limits | None = None) -> AsyncIterator[Box]:
        box = await self.runtimes[runtime].create(self.spec(limits))
        try:
            yield box
        finally:
            await box.destroy()

    @asynccontextmanager
    async def box(
        self, runtime: str, limits: Limits | None = None
    ) -> AsyncIterator[tuple[Box, BoxAgent]]:
        """A box and a client that is connected to it."""
        async with self.made_box(runtime, limits) as box, box.agent() as client:
            yield box, client

    @asynccontextmanager
    async def container(self, limits: Limits | None = None) -> AsyncIterator[DockerContainer]:
        """A container of the image that boxes have, with their limits, in which nothing runs."""
        assert self.docker is not None, "there is an engine wherever this is asked for"
        config = _container_config(self.run_id, limits or Limits())
        container = await self.docker.containers.create(config)
        try:
            await container.start()
            yield container
        finally:
            await container.delete(force=True)

    def run_arguments(self) -> list[str]:
        """`docker run` of the image that boxes have, with their limits."""
        limits = Limits()
        return [
            "docker", "run", "--rm", "--label", f"{LABEL}={self.run_id}", "--network", "none",
            "--cpus", f"{limits.cpus:g}", "--memory", str(limits.memory_bytes),
            "--pids-limit", str(limits.pids), IMAGE,
        ]  # fmt: skip

    async def clear(self) -> None:
        """Remove what a cancelled step may have left."""
        for runtime in self.runtimes.values():
            for owner in self.owners:
                with contextlib.suppress(SandboxError):
                    for box in await runtime.boxes(owner):
                        await box.destroy()
        if self.docker is not None:
            wanted = json.dumps({"label": [f"{LABEL}={self.run_id}"]})
            for container in await self.docker.containers.list(all=1, filters=wanted):
                with contextlib.suppress(aiodocker.DockerError):
                    await container.delete(force=True)


@asynccontextmanager
async def open_stage(available: Collection[str]) -> AsyncIterator[Stage]:
    """available: the runtimes of this machine, by the names scripts/engine.sh gives them."""
    async with AsyncExitStack() as stack:
        state_dir = stack.enter_context(_state_dir())
        runtimes: dict[str, Runtime] = {}
        docker = None
        if "docker" in available:
            docker = await stack.enter_async_context(aiodocker.Docker())
            runtimes[r.RUNC] = await stack.enter_async_context(DockerRuntime())
        if "gvisor" in available:
            gvisor = DockerRuntime(engine_runtime=GVISOR_NAME)
            runtimes[r.GVISOR] = await stack.enter_async_context(gvisor)
        if "bubblewrap" in available:
            bubblewrap = BubblewrapRuntime(state_dir=state_dir)
            runtimes[r.BUBBLEWRAP] = await stack.enter_async_context(bubblewrap)
        stage = Stage(runtimes, docker, state_dir)
        stack.push_async_callback(_to_the_end, stage)
        yield stage


async def _to_the_end(stage: Stage) -> None:
    await asyncio.shield(stage.clear())


@contextlib.contextmanager
def _state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        os.chmod(name, 0o711)  # Embedded boxes run as users of their own.
        yield Path(name)


def all_cpus() -> Limits:
    return Limits(cpus=float(os.cpu_count() or 1))


def _container_config(run_id: str, limits: Limits) -> dict[str, Any]:
    return {
        "Image": IMAGE,
        "Cmd": ["sleep", str(_LIFE_S)],
        "Labels": {LABEL: run_id},
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "none",
            "Memory": limits.memory_bytes,
            "NanoCpus": round(limits.cpus * 1e9),
            "PidsLimit": limits.pids,
        },
    }
