"""A whole fleet of real processes: Redis, workers, coordinators, and the ways they fail."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Presence
from tests.contract.conftest import make_runtime
from tests.fleet.redis_server import RedisServer, up_for_long
from tests.server_process import ServerProcess

LEASE_S = 3.0
GRACE_S = 20.0
"""On a busy machine a process may take long to start; until then its threads must not be lost."""
SHORT_GRACE_S = 3.0
KEY = "of-the-fleet"


class Fleet:
    def __init__(
        self,
        runtime: str,
        folder: Path,
        redis: RedisServer,
        *,
        grace_s: float,
        lease_s: float = LEASE_S,
    ) -> None:
        self.runtime = runtime
        self.redis = redis
        self.lease_s = lease_s
        self.grace_s = grace_s
        self._folder = folder
        self.workers: list[ServerProcess] = []
        self.coordinators: list[ServerProcess] = []
        self._made: list[ServerProcess] = []
        self.store = Store.open(redis.url)
        self.index = SessionIndex(self.store, lease_s=lease_s, grace_s=grace_s)

    def process(self, role: str, **settings: str) -> ServerProcess:
        """One more, not yet started."""
        fleet = {
            "SANDBOX_ROLE": role,
            "SANDBOX_REDIS_URL": self.redis.url,
            "SANDBOX_LEASE": str(self.lease_s),
            "SANDBOX_GRACE": str(self.grace_s),
            "SANDBOX_PATIENCE": "90",
            "SANDBOX_FLEET_KEY": KEY,
            "SANDBOX_LOG_FORMAT": "json",
        }
        made = ServerProcess(self.runtime, self._folder, {**fleet, **settings})
        self._made.append(made)
        return made

    async def start(self, *, workers: int, coordinators: int = 1) -> None:
        await self.run(
            [self.process("worker") for _ in range(workers)],
            [self.process("coordinator") for _ in range(coordinators)],
        )

    async def run(self, workers: list[ServerProcess], coordinators: list[ServerProcess]) -> None:
        """Start these, and return when they answer."""
        await up_for_long(self.store)
        self.workers, self.coordinators = workers, coordinators
        await asyncio.gather(*(p.start() for p in (*self.workers, *self.coordinators)))
        await asyncio.gather(*(p.ready() for p in (*self.workers, *self.coordinators)))

    async def close(self) -> None:
        for process in self._made:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                process.send(signal.SIGCONT)
                await process.stop()
        async with make_runtime(self.runtime, self._folder) as boxes:
            for worker in {owner for p in self._made for owner in p.owners()}:
                await asyncio.gather(*(box.destroy() for box in await boxes.boxes(worker)))
        await self.store.close()

    def named(self, worker_id: str) -> ServerProcess:
        return next(worker for worker in self.workers if worker.name == worker_id)

    async def presence(self, worker: ServerProcess) -> Presence:
        return await self.index.presence(worker.name)

    async def until(self, worker: ServerProcess, presence: Presence) -> None:
        async with asyncio.timeout(60):
            while await self.presence(worker) != presence:
                await asyncio.sleep(0.05)

    async def boxes(self, worker: ServerProcess) -> int:
        async with make_runtime(self.runtime, self._folder) as boxes:
            return len(await boxes.boxes(worker.name))

    def logs(self) -> str:
        return "\n\n".join(f"== {p.name}\n{p.log()}" for p in self._made)


@contextlib.asynccontextmanager
async def running_fleet(
    runtime: str,
    folder: Path,
    redis: RedisServer,
    *,
    workers: int,
    coordinators: int = 1,
    grace_s: float = GRACE_S,
    lease_s: float = LEASE_S,
) -> AsyncIterator[Fleet]:
    fleet = Fleet(runtime, folder, redis, grace_s=grace_s, lease_s=lease_s)
    try:
        await fleet.start(workers=workers, coordinators=coordinators)
        yield fleet
    finally:
        await fleet.close()


class Balancer:
    """The smallest load balancer: a port whose connections go to the first process that takes
    them."""

    def __init__(self, targets: list[ServerProcess]) -> None:
        self._targets = targets
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> "Balancer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for target in self._targets:
            try:
                there = await asyncio.open_connection("127.0.0.1", target.port)
                break
            except OSError:
                continue
        else:
            writer.close()
            return
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(_pipe(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


def remote(process: ServerProcess) -> RemoteBackend:
    return RemoteBackend(process.url)


def default_runtime() -> str:
    """The quickest there is: what is tested here does not depend on it."""
    names = os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",")
    if not any(names):
        pytest.skip("no runtime here; scripts/engine.sh says why")
    return "bubblewrap" if "bubblewrap" in names else names[0]
