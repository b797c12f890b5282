"""Limits in memory and in Redis: one suite, real parts."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from sandbox_server.access.limiter import (
    Limiter,
    MemoryLimiter,
    RedisLimiter,
    SharedNumbers,
    taken_at,
)
from sandbox_server.fleet.store import Store
from tests.fleet.redis_server import RedisServer

Open = Callable[[str], Limiter]


@pytest.fixture(params=["memory", "redis"])
async def of_server(
    request: pytest.FixtureRequest, redis_server: RedisServer
) -> AsyncIterator[Open]:
    """The limiter of a server, by its name. In memory there is one."""
    if request.param == "memory":
        only = MemoryLimiter()
        yield lambda _server: only
        return
    store = Store.open(redis_server.url, namespace=uuid.uuid4().hex)
    yield lambda server: RedisLimiter(store, server)
    await store.close()


async def test_a_rate_with_a_burst(of_server: Open) -> None:
    limiter = of_server("one")
    taken = [await limiter.take("acme", per_s=0.01, burst=5) for _ in range(7)]
    assert [each.allowed for each in taken] == [True] * 5 + [False] * 2
    assert [each.left for each in taken] == [4, 3, 2, 1, 0, 0, 0]
    assert 90 < taken[-1].wait_s <= 100
    assert (await limiter.take("other", per_s=0.01, burst=5)).allowed


async def test_it_comes_back(of_server: Open) -> None:
    limiter = of_server("one")
    assert (await limiter.take("acme", per_s=20, burst=1)).allowed
    refused = await limiter.take("acme", per_s=20, burst=1)
    assert not refused.allowed
    assert 0 < refused.wait_s <= 0.05
    async with asyncio.timeout(10):
        while not (await limiter.take("acme", per_s=20, burst=1)).allowed:
            await asyncio.sleep(0.01)


async def test_of_a_hundred_at_once_so_many_pass(of_server: Open) -> None:
    limiters = [of_server(f"server-{number}") for number in range(4)]
    taken = await asyncio.gather(
        *(limiters[number % 4].take("acme", per_s=0.001, burst=30) for number in range(100))
    )
    assert sum(each.allowed for each in taken) == 30


async def test_so_many_at_a_time(of_server: Open) -> None:
    one, other = of_server("one"), of_server("other")
    held = [await each.hold("acme", f"h{n}", most=3) for n, each in enumerate([one, other, one])]
    assert held == [True] * 3
    assert not await other.hold("acme", "h3", most=3)
    assert await other.hold("globex", "h4", most=3)
    await one.renew("acme", "h0")
    await one.release("acme", "h0")
    await one.release("globex", "h4")
    assert await other.hold("acme", "h5", most=3)
    assert not await other.hold("acme", "h6", most=3)


async def test_live_sessions(of_server: Open) -> None:
    one = of_server("one")
    for mine in range(3):
        assert await one.add_session("acme", mine, most=3) is None
    assert await one.add_session("acme", 3, most=3) == 3
    await one.have_sessions("acme", 2)
    assert await one.add_session("acme", 2, most=3) is None
    assert await one.add_session("globex", 0, most=3) is None


async def test_live_sessions_of_several_servers(redis_server: RedisServer) -> None:
    store = Store.open(redis_server.url, namespace=uuid.uuid4().hex)
    one, other = RedisLimiter(store, "one"), RedisLimiter(store, "other")
    assert await one.add_session("acme", 0, most=3) is None
    assert await one.add_session("acme", 1, most=3) is None
    assert await other.add_session("acme", 0, most=3) is None
    assert await other.add_session("acme", 1, most=3) == 3
    await one.have_sessions("acme", 0)
    assert await other.add_session("acme", 1, most=3) is None
    await store.close()


def test_processes_count_together() -> None:
    """Forked, as the processes of a server are."""
    limiter = MemoryLimiter(3)

    def in_child(index: int, work: Callable[[MemoryLimiter], object]) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(int(bool(work(limiter.of_process(index)))))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def takes(limiter: MemoryLimiter) -> bool:
        return (await limiter.take("acme", per_s=0.001, burst=2)).allowed

    def held(limiter: MemoryLimiter) -> bool:
        return asyncio.run(limiter.hold("acme", "", most=2))

    assert [in_child(n, lambda each: asyncio.run(takes(each))) for n in (0, 1, 2)] == [1, 1, 0]
    assert [in_child(n, held) for n in (0, 1, 2)] == [1, 1, 0]
    assert in_child(1, held) == 1  # Begun anew, it holds nothing.


def test_more_names_than_rows() -> None:
    numbers = SharedNumbers(2)
    for number in range(20_000):
        numbers.put(f"tenant-{number}", 1.0 + number, 1)
    assert numbers.total("tenant-19999") == 20_000
    numbers.clear(1)
    assert numbers.total("tenant-19999") == 0


def test_a_clock_that_stands_still() -> None:
    taken, arrival = taken_at(0.0, 100.0, per_s=10, burst=3)
    assert (taken.allowed, taken.left) == (True, 2)
    assert arrival == pytest.approx(100.1)
