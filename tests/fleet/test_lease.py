"""One lease a worker: renewed, lost, won back, and never held by two."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.store import DIGESTS, Store
from sandbox_server.fleet.workers import Drain, Phase, Presence, Worker
from sandbox_server.metrics.recorder import Metrics
from sandbox_server.sessions.lease import Load, LoneLease
from tests.fleet.conftest import may_serve
from tests.fleet.flaky_redis import flaky_way
from tests.fleet.redis_server import RedisServer

LEASE_S = 0.6
AFTER_LEASE = DIGESTS["uptime"].encode()
"""The first that a worker asks Redis with a new lease."""


class Holder:
    """A lease and what its holder was told."""

    def __init__(
        self, store: Store, folder: Path, *, worker: str = "w1", hands_over: bool = False
    ) -> None:
        self.gaps = 0
        self.vouched = 0
        self.sessions = 0
        self.failing = 0
        """How often vouching fails before it succeeds."""
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.stopped = asyncio.Event()
        card = Worker(id=worker, url=f"http://{worker}", capacity=7, phase=Phase.STARTING)
        self.lease = RedisLease(
            store,
            card,
            lease_s=LEASE_S,
            state_dir=folder,
            stop=self.stopped.set,
            hands_over=hands_over,
        )

    async def serve(self) -> None:
        await self.lease.serve(load=lambda: Load(sessions=self.sessions), on_gap=self._gap)

    async def _gap(self) -> None:
        self.gaps += 1
        await self.may_end.wait()
        if self.gaps <= self.failing:
            raise RuntimeUnavailable("the registry does not answer")
        self.vouched += 1


async def eventually(holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.fixture
async def holder(store: Store, tmp_path: Path) -> AsyncIterator[Holder]:
    made = Holder(store, tmp_path)
    async with made.lease:
        await made.serve()
        yield made


async def described(store: Store, worker: str = "w1") -> Worker:
    found = await SessionIndex(store, lease_s=LEASE_S, grace_s=1).worker(worker)
    assert found is not None
    return found


async def test_a_lease_outlives_its_time_by_being_renewed(holder: Holder, store: Store) -> None:
    holder.sessions = 3
    for _ in range(8):
        await asyncio.sleep(LEASE_S / 4)
        assert may_serve(holder.lease)
    worker = await described(store)
    assert (worker.sessions, worker.capacity, worker.phase) == (3, 7, Phase.SERVING)
    assert worker.presence(grace_s=1) == Presence.HERE


@pytest.mark.parametrize("name", ["get", "worker_ids", "now_ms"])
async def test_a_cancellation_is_never_lost(store: Store, name: str) -> None:
    """asyncio.wait_for loses it where what it waits for has just been done."""
    calls = {"get": lambda: store.get("x"), "worker_ids": store.worker_ids, "now_ms": store.now_ms}
    for steps in range(60):
        stop = asyncio.Event()
        task = asyncio.create_task(until(stop, calls[name]))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=1)
        stop.set()
        assert task.cancelled()


async def until(stop: asyncio.Event, call: Callable[[], Awaitable[object]]) -> None:
    while not stop.is_set():
        await call()


async def test_it_stays_listed_for_as_long_as_it_lives(holder: Holder, store: Store) -> None:
    await store.delete(store.workers_key)  # As if nobody had begun a lease for a whole day.
    async with asyncio.timeout(30):
        while await store.worker_ids() != ["w1"]:
            await asyncio.sleep(0.02)


async def test_one_that_starts_is_waited_for(store: Store, tmp_path: Path) -> None:
    async with Holder(store, tmp_path).lease:
        assert (await described(store)).presence(grace_s=1) == Presence.AWAY


async def test_a_successor_of_the_same_place_need_not_wait(store: Store, tmp_path: Path) -> None:
    first = Holder(store, tmp_path)
    await first.lease.__aenter__()
    with contextlib.suppress(RuntimeUnavailable):
        await die(first.lease)
    async with Holder(store, tmp_path).lease as second:
        assert second.epoch > first.lease.epoch
        assert may_serve(second)


async def die(lease: RedisLease) -> None:
    """Like kill -9: the lock is free, and nobody has let go of the lease."""
    await lease._stack.aclose()


async def test_another_of_the_same_name_waits_until_the_lease_is_over(
    store: Store, tmp_path: Path
) -> None:
    first = Holder(store, tmp_path / "a")
    await first.lease.__aenter__()
    other = Holder(store, tmp_path / "b")
    entering = asyncio.create_task(other.lease.__aenter__())
    await asyncio.wait([entering], timeout=LEASE_S * 2)
    assert not entering.done()
    await die(first.lease)
    await asyncio.wait_for(entering, 30)
    assert not may_serve(first.lease)
    assert other.lease.epoch > first.lease.epoch
    await other.lease.__aexit__()


async def test_one_that_was_superseded_stops_for_good(
    holder: Holder, store: Store, redis_server: RedisServer
) -> None:
    key = store.worker_key("w1")
    fields = await store.fields(key)
    await store.delete(key)
    await store.acquire(key, "elsewhere", ttl_s=60, keep_s=60, fields={"id": "w1"})
    await asyncio.wait_for(holder.stopped.wait(), 30)
    assert not may_serve(holder.lease)
    assert int((await store.fields(key))["epoch"]) > int(fields["epoch"])


async def test_without_redis_it_serves_until_its_time_is_over(
    holder: Holder, redis_server: RedisServer
) -> None:
    redis_server.freeze()
    assert may_serve(holder.lease)
    await eventually(lambda: not may_serve(holder.lease))
    await asyncio.sleep(LEASE_S / 2)  # It stops a little before others may think it gone.
    redis_server.thaw()
    await eventually(lambda: may_serve(holder.lease) and holder.gaps >= 1)
    assert not holder.stopped.is_set()


async def test_a_flushed_redis_is_told_everything_again(
    holder: Holder, store: Store, redis_server: RedisServer
) -> None:
    before = holder.lease.epoch
    await redis_server.flush()
    await eventually(lambda: holder.gaps == 1)
    await eventually(lambda: may_serve(holder.lease))
    assert holder.lease.epoch > before
    assert (await described(store)).presence(grace_s=1) == Presence.HERE


async def test_a_restarted_redis_is_told_everything_again(
    tmp_path: Path, store: Store, redis_server: RedisServer
) -> None:
    holder = Holder(store, tmp_path)
    async with holder.lease:
        await holder.serve()
        await redis_server.stop()
        await redis_server.start()
        await eventually(lambda: holder.gaps >= 1 and may_serve(holder.lease))


@pytest.mark.parametrize("how", ["flushed", "restarted"])
async def test_a_vouch_that_fails_is_done_again(
    tmp_path: Path, store: Store, redis_server: RedisServer, how: str
) -> None:
    holder = Holder(store, tmp_path)
    holder.failing = 2
    async with holder.lease:
        await holder.serve()
        if how == "flushed":
            await redis_server.flush()
        else:
            await redis_server.stop()
            await redis_server.start()
        await eventually(lambda: holder.vouched > 0)
        assert holder.gaps >= 3
        await eventually(lambda: may_serve(holder.lease))


async def test_a_lease_is_renewed_while_its_holder_vouches(
    holder: Holder, redis_server: RedisServer
) -> None:
    holder.may_end.clear()
    await redis_server.flush()
    await eventually(lambda: holder.gaps == 1 and may_serve(holder.lease))
    began = time.monotonic()
    while time.monotonic() < began + 3 * LEASE_S:
        assert may_serve(holder.lease)
        await asyncio.sleep(0.02)
    assert not holder.vouched
    holder.may_end.set()
    await eventually(lambda: holder.vouched == 1)


async def test_an_epoch_whose_answer_was_lost_is_still_ones_own(
    holder: Holder, store: Store, tmp_path: Path
) -> None:
    """A Redis that was frozen carries out what was asked long ago."""
    home = (tmp_path / "w1.home").read_text()
    unheard, _ = await store.acquire(
        store.worker_key("w1"), home, ttl_s=60, keep_s=60, fields=await store.fields("none")
    )
    await eventually(lambda: holder.lease.epoch > unheard)
    assert may_serve(holder.lease)
    assert not holder.stopped.is_set()
    await eventually(lambda: holder.vouched == 1)


async def test_a_wish_to_drain_outlives_a_gap(holder: Holder, store: Store) -> None:
    holder.sessions = 1
    await store.ask_to_drain("w1", Drain.LEAVE)
    await store._ask("HSET", store.worker_key("w1"), "until", 1)  # Its lease has lapsed.
    await eventually(lambda: holder.lease.draining)


async def test_letting_go_says_so(store: Store, tmp_path: Path) -> None:
    holder = Holder(store, tmp_path)
    async with holder.lease:
        await holder.serve()
    worker = await described(store)
    assert worker.phase == Phase.STOPPED
    assert worker.presence(grace_s=60) == Presence.AWAY
    assert worker.presence(grace_s=0) == Presence.GONE


async def test_handing_over_says_so(store: Store, tmp_path: Path) -> None:
    """Nobody waits for the grace period, not even one that has just begun itself."""
    index = SessionIndex(store, lease_s=LEASE_S, grace_s=3600)
    registry = RedisRegistry(index, LoneLease("w2", 1))
    holder = Holder(store, tmp_path, hands_over=True)
    async with holder.lease:
        await holder.serve()
        assert not await registry.is_gone("w1")
        await store.set_field(store.held_key("w1"), "s", "{}")
    assert (await described(store)).phase == Phase.LEFT
    assert await registry.is_gone("w1")
    assert "w1" in await registry.gone()


async def test_one_that_hands_over_nothing_is_forgotten(store: Store, tmp_path: Path) -> None:
    holder = Holder(store, tmp_path, hands_over=True)
    async with holder.lease:
        await holder.serve()
    assert await store.worker_ids() == []


async def test_draining_for_a_restart_stops_at_once(holder: Holder, store: Store) -> None:
    holder.sessions = 2
    await store.ask_to_drain("w1", Drain.RESTART)
    await asyncio.wait_for(holder.stopped.wait(), 30)
    assert holder.lease.draining


async def test_one_that_leaves_waits_for_its_sessions_and_is_forgotten(
    store: Store, tmp_path: Path
) -> None:
    holder = Holder(store, tmp_path)
    async with holder.lease:
        await holder.serve()
        holder.sessions = 1
        await store.ask_to_drain("w1", Drain.LEAVE)
        await eventually(lambda: holder.lease.draining)
        assert not holder.stopped.is_set()
        holder.sessions = 0
        await asyncio.wait_for(holder.stopped.wait(), 30)
    assert await store.worker_ids() == []


class GaveUp(Metrics):
    """Notices when Redis was asked often enough without an answer."""

    def __init__(self) -> None:
        self.noticed = asyncio.Event()

    def redis_failed(self) -> None:
        self.noticed.set()


async def test_a_gap_is_made_good_though_redis_fails_as_it_is_noticed(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The new lease is there, and nothing else has been asked yet."""
    gave_up = GaveUp()
    async with (
        flaky_way(redis_server.port) as way,
        Store.open(way.url, metrics=gave_up) as store,
    ):
        holder = Holder(store, tmp_path)
        async with holder.lease:
            await holder.serve()
            before = holder.lease.epoch
            way.cut()
            await redis_server.flush()
            way.open()
            way.cut_at(AFTER_LEASE, times=1)
            await asyncio.wait_for(way.closed.wait(), 30)
            assert holder.lease.epoch > before
            gave_up.noticed.clear()
            await asyncio.wait_for(gave_up.noticed.wait(), 30)
            way.open()
            await eventually(lambda: holder.vouched > 0)


async def test_one_that_was_away_stays_so_until_it_has_vouched(
    holder: Holder, redis_server: RedisServer
) -> None:
    """Others may have taken over what it has, also if Redis forgets that meanwhile."""
    holder.failing = 1 << 30
    redis_server.freeze()
    await eventually(lambda: not may_serve(holder.lease))
    await asyncio.sleep(LEASE_S / 2)  # It stops a little before its lease ends.
    redis_server.thaw()
    await eventually(lambda: holder.gaps > 0)
    before = holder.lease.epoch
    await redis_server.flush()
    await eventually(lambda: holder.lease.epoch > before)
    assert holder.lease.was_away
    holder.failing = 0
    await eventually(lambda: holder.vouched > 0)
