"""A whole server for a test, and the ways to reach it."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from sandbox_sdk.backends.base import Sandboxes
from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.models import Limits
from sandbox_server.api.app import create_app
from sandbox_server.pool import PoolSettings
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.worker import Worker

LIMITS = Limits(
    memory_bytes=512 << 20,
    cpus=0.5,
    pids=256,
    disk_bytes=1 << 30,
    command_timeout_s=30,
    output_limit_bytes=1 << 20,
    upload_limit_bytes=8 << 20,
    network="none",
)


class Stand:
    """The server side of a test: what callers cannot do to it, the test can."""

    capacity = 3

    def __init__(self, worker: Worker, service: SandboxService) -> None:
        self.worker = worker
        self.service = service

    async def lose_box(self, thread_id: str) -> None:
        """What happens when an engine removes a box, or its machine dies."""
        (session,) = [s for s in self.worker.table.sessions() if s.record.thread_id == thread_id]
        await session.box.destroy()


@contextlib.asynccontextmanager
async def open_stand(runtime: Runtime, state_dir: Path) -> AsyncIterator[Stand]:
    owner = f"stand-{uuid.uuid4().hex[:8]}"
    worker = Worker(
        runtime,
        BoxSpec(owner=owner, deadman_s=300),
        pool=PoolSettings(size=1, min_size=0, max_size=2),
        environments={},
        idle_timeout_s=600,
        capacity=Stand.capacity,
        state_dir=state_dir,
        destroy_on_exit=True,
        tick_s=0.2,
    )
    async with worker:
        facts = ServiceFacts(worker_id=owner, runtime=runtime.name, limits=LIMITS)
        yield Stand(worker, SandboxService(worker.table, facts, health=worker.health))


@contextlib.asynccontextmanager
async def served(sandboxes: Sandboxes) -> AsyncIterator[str]:
    """The url of a Sandboxes on a real socket."""
    config = uvicorn.Config(create_app(sandboxes), port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def stand(server_runtime: Runtime, state_dir: Path) -> AsyncIterator[Stand]:
    async with open_stand(server_runtime, state_dir) as made:
        yield made


@pytest.fixture(params=["service", "http"])
async def sandboxes(request: pytest.FixtureRequest, stand: Stand) -> AsyncIterator[Sandboxes]:
    if request.param == "service":
        yield stand.service
        return
    async with served(stand.service) as url, RemoteBackend(url) as remote:
        yield remote
