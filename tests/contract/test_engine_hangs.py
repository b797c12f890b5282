"""An engine that takes the start of a container and never answers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiodocker
import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import PooledBoxes
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.docker import DockerRuntime
from sandbox_server.runtime.docker.engine import Endpoint
from sandbox_server.sessions.ledger import Ledger
from tests.contract.conftest import RUNTIMES
from tests.run import run_owner

pytestmark = pytest.mark.skipif("docker" not in RUNTIMES, reason="no docker here")

SPEC = BoxSpec(owner=run_owner(f"hangs-{os.getpid()}"), deadman_s=120)
START_S = 10.0
"""Enough for a start that does not hang, on a busy machine."""


@dataclass
class HangingEngine:
    """Before a real engine. `starts`: how many starts it still takes without an answer."""

    url: str
    starts: int = 0
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await Endpoint.of().connect()
        back = asyncio.create_task(_pipe(there, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.starts and b"/start HTTP/1.1\r\n" in data:
                    self.starts -= 1
                    self.hung.set()
                    continue
                to_there.write(data)
                await to_there.drain()
        to_there.close()
        await back
        for each in (to_there, writer):
            with contextlib.suppress(OSError):
                await each.wait_closed()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[HangingEngine]:
    path = tmp_path / "engine.sock"
    made = HangingEngine(f"unix://{path}")
    server = await asyncio.start_unix_server(made.accept, path)
    yield made
    server.close()
    await asyncio.wait_for(asyncio.gather(*made.serving), 30)


async def containers() -> int:
    """How many there are of this test, by the engine itself."""
    async with aiodocker.Docker(url=Endpoint.of().url) as docker:
        found = await docker.containers.list(all=1)
        return sum(SPEC.owner in each["Labels"].values() for each in found)


async def until_there_is_none() -> None:
    async with asyncio.timeout(60):
        while await containers():
            await asyncio.sleep(0.05)


async def test_a_start_that_hangs_is_given_up(engine: HangingEngine) -> None:
    engine.starts = 1
    async with DockerRuntime(engine.url, start_s=0.5) as runtime:
        with pytest.raises(RuntimeUnavailable, match=r"did not start a container within 0\.5 s"):
            await runtime.create(SPEC)
        assert engine.hung.is_set()
        await until_there_is_none()


async def test_the_pool_goes_on(engine: HangingEngine) -> None:
    engine.starts = 1
    runtime = DockerRuntime(engine.url, start_s=START_S)
    pool = PooledBoxes(
        runtime,
        SPEC,
        PoolSettings(size=1, min_size=1, max_size=1, concurrency=1, tick_s=0.05),
        environments=dict,
        epoch=lambda: 1,
        room=lambda: 1,
        notes=Ledger(),
    )
    async with runtime, pool, asyncio.timeout(90):
        await engine.hung.wait()
        while not pool.warm:
            await asyncio.sleep(0.05)
        assert engine.starts == 0
        while await containers() != 1:
            await asyncio.sleep(0.05)
    await until_there_is_none()
