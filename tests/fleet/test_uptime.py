"""Which time counts: only that in which workers could renew their leases."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis, RedisCluster

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.store import Store, Uptime
from sandbox_server.fleet.workers import Presence, outage_s
from sandbox_server.sessions.registry import REMEMBER_S, Status
from tests.fleet.conftest import opened_store
from tests.fleet.redis_server import RedisServer, up_for_long
from tests.fleet.test_registry import TARGET, hold_lease, record, registry_of

LEASE_S, GRACE_S = 600.0, 600.0
SETTLE_S = LEASE_S + GRACE_S
NEVER_S = 1.0
"""More than what passes during a test would be too much, and less than any time it plays."""


class Clock:
    """Of one Redis: a test puts back what is written in it, instead of waiting."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def passes(self, seconds: float) -> None:
        """Without a heartbeat."""
        run_id, born = str(await self._store.get(self._store.marker_key)).split()
        shift = round(seconds * 1000)
        await self._store.set(self._store.marker_key, f"{run_id} {int(born) - shift}", ttl_s=600)
        fields = await self._store.fields(self._store.uptime_key)
        for name in ("born", "last", "since"):
            shifted = str(int(fields[name]) - shift)
            await self._store.set_field(self._store.uptime_key, name, shifted)
        for worker in await self._store.worker_ids():
            key = self._store.worker_key(worker)
            until = int((await self._store.fields(key))["until"])
            await self._store.set_field(key, "until", str(until - shift))

    async def passes_well(self, seconds: float) -> None:
        """With heartbeats all the time."""
        while seconds > 0:
            await self.passes(min(seconds, LEASE_S / 3))
            await beat(self._store)
            seconds -= LEASE_S / 3


async def beat(store: Store) -> Uptime:
    return await store.uptime(outage_s=outage_s(LEASE_S), keep_s=REMEMBER_S, renewed=True)


async def look(store: Store) -> Uptime:
    return await store.uptime(outage_s=outage_s(LEASE_S), keep_s=REMEMBER_S)


async def is_sure(index: SessionIndex) -> bool:
    try:
        await index.make_sure()
    except RuntimeUnavailable:
        return False
    return True


@pytest.fixture
async def clock(store: Store) -> Clock:
    await beat(store)
    return Clock(store)


@pytest.fixture
def index(store: Store) -> SessionIndex:
    return SessionIndex(store, lease_s=LEASE_S, grace_s=GRACE_S)


async def lapsed(store: Store, clock: Clock) -> None:
    """A worker `w1` whose lease and grace are over, while others were well."""
    await store.note_worker("w1", now_ms=0)
    await hold_lease(store, "w1", lease_s=LEASE_S)
    await clock.passes_well(SETTLE_S + 1)


async def test_a_worker_is_gone_after_lease_and_grace(
    store: Store, clock: Clock, index: SessionIndex
) -> None:
    await store.note_worker("w1", now_ms=0)
    await hold_lease(store, "w1", lease_s=LEASE_S)
    await clock.passes_well(SETTLE_S - 100)
    assert await index.presence("w1") == Presence.AWAY
    await clock.passes_well(101)
    assert await index.presence("w1") == Presence.GONE
    assert [worker.lapsed_s >= GRACE_S for worker in await index.workers()] == [True]


@pytest.mark.parametrize("first", ["worker", "coordinator"])
async def test_after_an_outage_every_worker_has_lease_and_grace_again(
    store: Store, clock: Clock, index: SessionIndex, first: str
) -> None:
    """Whoever is the first to see Redis again."""
    await clock.passes_well(SETTLE_S)
    await store.note_worker("w1", now_ms=0)
    await hold_lease(store, "w1", lease_s=LEASE_S)
    await clock.passes(10 * SETTLE_S)
    if first == "worker":
        await beat(store)
    assert await index.presence("w1") == Presence.AWAY
    assert {worker.lapsed_s for worker in await index.workers()} == {0.0}
    await beat(store)
    await clock.passes_well(SETTLE_S - 100)
    assert await index.presence("w1") == Presence.AWAY
    assert await index.presence("unknown") == Presence.AWAY
    await clock.passes_well(101)
    assert await index.presence("w1") == Presence.GONE
    assert await index.presence("unknown") == Presence.GONE


async def test_one_outage_after_the_other_takes_nobody_for_gone(
    store: Store, clock: Clock, index: SessionIndex
) -> None:
    await store.note_worker("w1", now_ms=0)
    await hold_lease(store, "w1", lease_s=LEASE_S)
    for _ in range(5):
        await clock.passes_well(SETTLE_S / 2)
        await clock.passes(SETTLE_S)
        assert await index.presence("w1") == Presence.AWAY


async def test_while_no_worker_renews_nobody_is_gone(
    store: Store, clock: Clock, index: SessionIndex
) -> None:
    """That callers reach Redis shows nothing about workers: all may be cut off from it."""
    await clock.passes_well(SETTLE_S)
    await store.note_worker("w1", now_ms=0)
    await hold_lease(store, "w1", lease_s=LEASE_S)
    for _ in range(10):
        await clock.passes(LEASE_S / 2)
        assert await index.presence("w1") != Presence.GONE


async def test_an_outage_without_loss_puts_nothing_in_doubt(
    store: Store, clock: Clock, index: SessionIndex
) -> None:
    await clock.passes_well(SETTLE_S)
    assert await is_sure(index)
    await clock.passes(SETTLE_S)
    assert await is_sure(index)
    assert (await beat(store)).up_s < NEVER_S
    assert await is_sure(index)


@pytest.mark.parametrize("first", ["worker", "coordinator"])
async def test_settling_counts_no_time_in_which_nobody_was_answered(
    store: Store, index: SessionIndex, redis_server: RedisServer, first: str
) -> None:
    """Emptied, and frozen again before all have told what they have."""
    clock = Clock(store)
    await beat(store)
    await clock.passes_well(SETTLE_S)
    await redis_server.flush()
    await (beat(store) if first == "worker" else look(store))
    assert not await is_sure(index)
    await clock.passes(10 * SETTLE_S)
    assert not await is_sure(index)
    await beat(store)
    await clock.passes_well(SETTLE_S - 100)
    assert not await is_sure(index)
    await redis_server.flush()  # Twice.
    await beat(store)
    await clock.passes_well(SETTLE_S - 100)
    assert not await is_sure(index)
    await clock.passes_well(101)
    assert await is_sure(index)


async def test_a_restart_with_old_data_begins_anew(
    store: Store, clock: Clock, index: SessionIndex, redis_server: RedisServer
) -> None:
    await lapsed(store, clock)
    kept = {key: await store.fields(key) for key in (store.worker_key("w1"), store.uptime_key)}
    marker = await store.get(store.marker_key)
    assert await index.presence("w1") == Presence.GONE
    await redis_server.stop()
    await redis_server.start()
    await store.set(store.marker_key, str(marker), ttl_s=600)
    for key, fields in kept.items():
        for name, value in fields.items():
            await store.set_field(key, name, value)
    assert not await is_sure(index)
    assert await index.presence("w1") == Presence.AWAY


@pytest.mark.parametrize("by_s", [-10 * SETTLE_S, 10 * SETTLE_S])
async def test_a_clock_that_was_set_is_an_outage(
    store: Store, clock: Clock, index: SessionIndex, by_s: float
) -> None:
    await lapsed(store, clock)
    assert await index.presence("w1") == Presence.GONE
    await clock.passes(by_s)
    assert (await look(store)).up_s == 0
    assert (await beat(store)).up_s < NEVER_S
    assert await is_sure(index)
    assert await index.presence("w1") != Presence.GONE


async def test_workers_of_an_earlier_version_are_heard(store: Store, clock: Clock) -> None:
    """They only list themselves."""
    for _ in range(4):
        await clock.passes(LEASE_S / 2)
        await store.note_worker("old", now_ms=await store.now_ms())
        await store.set_field(store.worker_key("old"), "until", "0")
        await look(store)
    assert (await look(store)).up_s >= 2 * LEASE_S


async def test_the_marker_of_an_earlier_version_counts(store: Store, index: SessionIndex) -> None:
    run_id = (await look(store)).run_id
    since = await store.now_ms() - round((SETTLE_S + 1) * 1000)
    await store.set(store.marker_key, f"{run_id} {since}", ttl_s=600)
    assert await is_sure(index)
    assert (await look(store)).up_s < NEVER_S


async def test_nobody_is_forgotten_after_a_day_without_redis(
    store: Store, clock: Clock, index: SessionIndex
) -> None:
    """All were silent, and the first to be heard again looks who was."""
    await clock.passes_well(SETTLE_S)
    await hold_lease(store, "w1", lease_s=LEASE_S)
    await store.note_worker("w1", now_ms=0)
    first = record()
    await registry_of(index, "w1").begin(first, before=None)
    await clock.passes(2 * SETTLE_S)
    await beat(store)
    with pytest.raises(RuntimeUnavailable):
        await index.reap()
    assert await index.held("w1") == [first]


async def test_an_end_that_may_be_old_is_no_reason_to_begin_anew(
    store: Store, index: SessionIndex, redis_server: RedisServer
) -> None:
    """A later session of the thread may have begun in what Redis has lost."""
    await up_for_long(store)
    first, later = record(), record(generation=2, worker="w3")
    mine, other = registry_of(index, "w1"), registry_of(index, "w2")
    await mine.begin(first, before=None)
    await mine.end(first, Status.CLEANED)
    before = await other.predecessor("t", "conv")
    ended = await store.get(store.thread_key("t", "conv"))
    await redis_server.stop()
    await redis_server.start()
    await store.set(store.thread_key("t", "conv"), str(ended), ttl_s=600)
    for asked in (other.predecessor("t", "conv"), other.newest("t", "conv")):
        with pytest.raises(RuntimeUnavailable):
            await asked
    with pytest.raises(RuntimeUnavailable):
        await other.begin(record(generation=2, worker="w2"), before=before)
    assert await registry_of(index, "w3").restore(later)
    assert await other.newest("t", "conv") == later


async def test_a_live_session_of_ones_own_may_be_an_old_one(
    store: Store, index: SessionIndex, redis_server: RedisServer
) -> None:
    await redis_server.stop()
    await redis_server.start()
    mine = registry_of(index, "w1")
    old = record()
    assert await mine.restore(old)
    with pytest.raises(RuntimeUnavailable):
        await mine.predecessor("t", "conv")
    found = await mine.explain(old, TARGET)
    assert isinstance(found, RuntimeUnavailable)


async def test_a_cluster_is_up_if_all_its_nodes_are(tmp_path: Path) -> None:
    """The leases on a node that is frozen lapse, while those on others are renewed."""
    async with opened_store("cluster", tmp_path) as store:
        client = store._client
        assert isinstance(client, RedisCluster)
        before = await beaten(store)
        keeper = client.get_node_from_key(store.marker_key)
        other = next(node for node in client.get_primaries() if node != keeper)
        async with frozen(int(other.port)):
            assert await beaten(store) == before
        assert await beaten(store) > before


async def beaten(store: Store) -> int:
    await store.uptime(outage_s=8, keep_s=60, renewed=True)
    return int((await store.fields(store.uptime_key))["last"])


@asynccontextmanager
async def frozen(port: int) -> AsyncIterator[None]:
    async with Redis(port=port) as client:
        pid = (await client.info("server"))["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
