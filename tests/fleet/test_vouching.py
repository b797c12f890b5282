"""Vouching is done when it is done: no session is served that the registry may not know."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.models import Target
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Phase, Worker
from sandbox_server.sessions.lease import Load, LoneLease
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.reporter import BATCH
from sandbox_server.sessions.table import SessionTable
from tests.fleet.conftest import may_serve
from tests.fleet.flaky_redis import FlakyWay, flaky_way
from tests.fleet.redis_server import RedisServer
from tests.fleet.vouching import TENANT, session_of, table_of

LEASE_S = 4.0
SESSIONS = 5 * BATCH


class Vouching:
    """A worker with many sessions, whose way to Redis can be cut."""

    def __init__(self, table: SessionTable, lease: RedisLease, way: FlakyWay) -> None:
        self.table = table
        self.lease = lease
        self.way = way
        self.sessions = self.table.sessions()

    def unvouched(self) -> list[LiveSession]:
        return [s for s in self.sessions if s.record.epoch != self.lease.epoch]


async def eventually(holds: Callable[[], object], *, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
async def vouching(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Vouching]:
    async with contextlib.AsyncExitStack() as stack:
        way = await stack.enter_async_context(flaky_way(redis_server.port))
        store = Store.open(way.url)
        stack.push_async_callback(store.close)
        card = Worker(id="w1", url="http://w1", capacity=1 << 20, phase=Phase.STARTING)
        lease = RedisLease(store, card, lease_s=LEASE_S, state_dir=tmp_path, stop=lambda: None)
        await stack.enter_async_context(lease)
        lease.was_away = False  # The sessions are of this epoch, as if it had made them.
        table = table_of(SessionIndex(store, lease_s=LEASE_S, grace_s=60), lease)
        for number in range(SESSIONS):
            session = session_of("w1", number)
            table._live[TENANT, session.record.thread_id] = session
        await table.vouch()
        await lease.serve(load=lambda: Load(sessions=SESSIONS), on_gap=table.vouch)
        yield Vouching(table, lease, way)


async def test_a_redis_that_fails_in_the_middle_is_told_the_rest(
    vouching: Vouching, redis_server: RedisServer, store: Store
) -> None:
    assert vouching.unvouched() == []
    way, lease, table = vouching.way, vouching.lease, vouching.table
    before = lease.epoch
    # In the middle of the third batch: every record has its tenant in it.
    way.cut_at(b'"tenant":"t"', times=2 * BATCH + BATCH // 2)
    await redis_server.flush()
    await asyncio.wait_for(way.closed.wait(), 30)
    # Meanwhile another worker begins with a thread that Redis has not been told of yet.
    rival = await taken_over(store, vouching.sessions[-1])
    assert lease.epoch > before
    left = vouching.unvouched()
    assert 0 < len(left) < SESSIONS
    for session in (left[0], left[-1]):
        with pytest.raises(RuntimeUnavailable):
            await table.find(TENANT, Target(thread_id=session.record.thread_id))
        with pytest.raises(RuntimeUnavailable):
            await table.open(TENANT, session.record.thread_id)
    way.open()
    lost = vouching.sessions[-1]
    await eventually(lambda: may_serve(lease) and vouching.unvouched() == [lost])
    await eventually(lambda: not table.behind)
    assert lost.ended is not None
    await eventually(lambda: lost.box.destroyed)  # type: ignore[attr-defined]
    index = SessionIndex(store, lease_s=LEASE_S, grace_s=60)
    for session in vouching.sessions[:-1]:
        found = await index.peek(TENANT, session.record.thread_id)
        assert found is not None
        assert found.session_id == session.record.session_id
    assert await index.peek(TENANT, lost.record.thread_id) == rival
    assert len(await index.held("w1")) == SESSIONS - 1


async def taken_over(store: Store, session: LiveSession) -> object:
    index = SessionIndex(store, lease_s=LEASE_S, grace_s=60)
    later = replace(session.record, generation=2, session_id="later", worker="w2", epoch=1)
    assert await RedisRegistry(index, LoneLease("w2", 1)).restore(later)
    return later


async def test_a_session_is_vouched_for_when_it_is_asked_for(
    vouching: Vouching, redis_server: RedisServer, store: Store
) -> None:
    """It does not wait for its turn, and one that was taken over is not served."""
    first, last = vouching.sessions[0], vouching.sessions[-1]
    for session in (first, last):
        session.record = replace(session.record, epoch=-1)
    await taken_over(store, last)
    assert await vouching.table.find(TENANT, Target(thread_id="conv-0")) is first
    assert first.record.epoch == vouching.lease.epoch
    with pytest.raises(SessionLost):
        await vouching.table.find(TENANT, Target(thread_id=last.record.thread_id))
    assert vouching.table.live(TENANT, last.record.thread_id) is None
