"""Redis is away for longer than every lease and grace, comes back with old data or none, and fails
again: no session of a worker that is well is lost, and what is lost is reported."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_server.fleet.workers import Presence
from tests.fleet.fleet import Fleet, default_runtime, remote, running_fleet
from tests.fleet.redis_server import RedisServer, redis_program
from tests.server_process import ServerProcess

pytestmark = pytest.mark.timeout(240)
LEASE_S = 1.5
GRACE_S = 4.5
TOO_LONG_S = LEASE_S + GRACE_S + 1
THREADS = [f"conv-{number}" for number in range(8)]
COUNT = "echo x >> f; wc -l < f"


@pytest.fixture
async def lasting_redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """One with an append-only file."""
    if redis_program() is None:
        pytest.skip("no redis-server here")
    server = RedisServer(tmp_path / "redis", persistent=True)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def fleet(lasting_redis: RedisServer, state_dir: Path) -> AsyncIterator[Fleet]:
    async with running_fleet(
        default_runtime(), state_dir, lasting_redis, workers=2, grace_s=GRACE_S, lease_s=LEASE_S
    ) as made:
        yield made


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[RemoteBackend]:
    async with remote(fleet.coordinators[0]) as made:
        yield made


async def count(client: RemoteBackend, thread_id: str) -> tuple[str, int, str]:
    result = await client.execute(ExecuteRequest(thread_id=thread_id, command=COUNT))
    return result.output.strip(), result.generation, result.session_state


async def count_all(client: RemoteBackend) -> list[tuple[str, int, str]]:
    return await asyncio.gather(*(count(client, thread) for thread in THREADS))


async def owner(fleet: Fleet, client: RemoteBackend, thread_id: str) -> ServerProcess:
    return fleet.named((await client.session(Target(thread_id=thread_id))).worker)


async def frozen(fleet: Fleet) -> None:
    fleet.redis.freeze()
    await asyncio.sleep(TOO_LONG_S)
    fleet.redis.thaw()


async def killed(fleet: Fleet) -> None:
    await fleet.redis.stop()
    await asyncio.sleep(TOO_LONG_S)
    await fleet.redis.start()


async def emptied_and_frozen(fleet: Fleet) -> None:
    """It stalls as soon as one worker has registered, which is too soon for the others."""
    await emptied(fleet)
    while not await fleet.store.worker_ids():
        await asyncio.sleep(0.01)
    await frozen(fleet)


async def emptied(fleet: Fleet) -> None:
    await fleet.redis.stop()
    shutil.rmtree(fleet.redis.folder)
    await fleet.redis.start()


@pytest.mark.parametrize("outage", [frozen, killed, emptied_and_frozen])
async def test_sessions_of_workers_that_are_well_live_on(
    fleet: Fleet, client: RemoteBackend, outage: Callable[[Fleet], Awaitable[None]]
) -> None:
    assert await count_all(client) == [("1", 1, "created")] * len(THREADS)
    await outage(fleet)
    assert await count_all(client) == [("2", 1, "live")] * len(THREADS), fleet.logs()


@pytest.mark.parametrize("outage", [frozen, emptied_and_frozen])
async def test_the_last_worker_to_be_back_has_kept_everything(
    fleet: Fleet, client: RemoteBackend, outage: Callable[[Fleet], Awaitable[None]]
) -> None:
    assert await count(client, "t") == ("1", 1, "created")
    last = await owner(fleet, client, "t")
    first = next(worker for worker in fleet.workers if worker is not last)
    last.send(signal.SIGSTOP)
    await outage(fleet)
    await fleet.until(first, Presence.HERE)
    asked = asyncio.create_task(count(client, "t"))
    await asyncio.wait([asked], timeout=LEASE_S / 2)
    last.send(signal.SIGCONT)
    assert await asked == ("2", 1, "live"), fleet.logs()


async def test_what_a_worker_had_that_died_meanwhile_is_lost_in_the_end(
    fleet: Fleet, client: RemoteBackend
) -> None:
    assert await count(client, "t") == ("1", 1, "created")
    dead = await owner(fleet, client, "t")
    fleet.redis.freeze()
    await dead.stop()
    await asyncio.sleep(TOO_LONG_S)
    fleet.redis.thaw()
    assert await count(client, "t") == ("1", 2, "recreated"), fleet.logs()
    assert await fleet.presence(dead) == Presence.GONE
