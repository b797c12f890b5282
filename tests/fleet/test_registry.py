"""Every registry keeps the same promises: in a file, in Redis, and in a cluster of them."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import (
    Misdirected,
    RuntimeUnavailable,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.protocol.models import Target
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Worker, worker_fields
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.previews import SessionPreviews, StoredPreview
from sandbox_server.sessions.registry import Record, Registry, Status
from sandbox_server.sessions.sqlite import SqliteRegistry
from tests.fleet.conftest import opened_store
from tests.fleet.redis_server import RedisServer, up_for_long

LEASE_S = 60.0
"""No worker has to send heartbeats while a test runs."""
GRACE_S = 0.2
LEASE = LoneLease("w1", 1)
TARGET = Target(thread_id="any")


@pytest.fixture
async def index(store: Store) -> SessionIndex:
    return await trusted(store)


async def trusted(store: Store) -> SessionIndex:
    """One that has been up for long enough to be believed."""
    await up_for_long(store)
    return SessionIndex(store, lease_s=LEASE_S, grace_s=GRACE_S)


@pytest.fixture(params=["sqlite", "redis", "cluster"])
async def registry(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Registry]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "sqlite":
            made: Registry = SqliteRegistry(tmp_path / "sessions.sqlite", worker="w1")
        else:
            opened = opened_store(request.param, tmp_path / request.param)
            made = RedisRegistry(await trusted(await stack.enter_async_context(opened)), LEASE)
        stack.push_async_callback(made.close)
        yield made


ASKED = {"environment": "Data", "limits": {"pids": 33}}


def record(**changes: object) -> Record:
    base = Record(
        tenant="t",
        thread_id="conv",
        generation=1,
        session_id=str(uuid.uuid4()),
        box_id="b1",
        status=Status.LIVE,
        created_at=1.5,
        worker="w1",
        epoch=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


async def test_a_session_is_found_by_thread_and_by_name(registry: Registry) -> None:
    first = record()
    assert await registry.predecessor("t", "conv") is None
    await registry.begin(first, before=None)
    found = await registry.newest("t", "conv")
    assert found is not None
    assert replace(found, epoch=1) == first
    assert await registry.by_session("t", first.session_id) == found
    assert await registry.newest("other", "conv") is None
    assert await registry.by_session("other", first.session_id) is None


async def test_the_next_life_can_have_what_the_last_was_asked_for(registry: Registry) -> None:
    first = record(asked=ASKED)
    await registry.begin(first, before=None)
    for status in (None, Status.EXPIRED):
        if status is not None:
            await registry.end(first, status)
        for found in (await registry.predecessor("t", "conv"), await registry.newest("t", "conv")):
            assert found is not None
            assert found.asked == ASKED


async def test_a_later_life_follows_and_the_earlier_is_remembered(registry: Registry) -> None:
    first = record()
    await registry.begin(first, before=None)
    await registry.end(first, Status.CLEANED)
    before = await registry.predecessor("t", "conv")
    assert before is not None
    assert before.status == Status.CLEANED
    second = record(generation=2)
    await registry.begin(second, before=before)
    newest = await registry.newest("t", "conv")
    assert newest is not None
    assert (newest.generation, newest.session_id) == (2, second.session_id)
    earlier = await registry.by_session("t", first.session_id)
    assert earlier is not None
    assert earlier.status == Status.CLEANED
    assert isinstance(await registry.explain(earlier, TARGET), SessionNotFound)


async def test_a_live_one_that_nobody_has_any_more_is_lost(registry: Registry) -> None:
    first = record()
    await registry.begin(first, before=None)
    before = await registry.predecessor("t", "conv")
    assert isinstance(await registry.explain(before, TARGET), SessionLost)
    await registry.begin(record(generation=2), before=before)
    earlier = await registry.by_session("t", first.session_id)
    assert isinstance(await registry.explain(earlier, TARGET), SessionLost)


async def test_the_end_of_an_earlier_life_does_not_touch_the_later(registry: Registry) -> None:
    first = record()
    await registry.begin(first, before=None)
    second = record(generation=2)
    await registry.begin(second, before=await registry.predecessor("t", "conv"))
    await registry.end(first, Status.EXPIRED)
    newest = await registry.newest("t", "conv")
    assert newest is not None
    assert (newest.session_id, newest.status) == (second.session_id, Status.LIVE)


async def test_what_was_found_alive_is_known_again(registry: Registry) -> None:
    first = record()
    assert await registry.restore(first)
    found = await registry.by_session("t", first.session_id)
    assert found is not None
    assert found.status == Status.LIVE


# What only holds for a registry that is shared


def registry_of(index: SessionIndex, worker: str) -> RedisRegistry:
    return RedisRegistry(index, LoneLease(worker, 1))


async def hold_lease(store: Store, worker: str, *, lease_s: float) -> None:
    card = worker_fields(Worker(id=worker, url=f"http://{worker}"))
    await store.acquire(store.worker_key(worker), worker, ttl_s=lease_s, keep_s=60, fields=card)


async def test_another_worker_is_sent_to_the_one_that_has_the_thread(
    index: SessionIndex, store: Store
) -> None:
    await hold_lease(store, "w1", lease_s=60)
    await registry_of(index, "w1").begin(record(), before=None)
    with pytest.raises(Misdirected) as raised:
        await registry_of(index, "w2").predecessor("t", "conv")
    assert raised.value.details["worker"] == "w1"


async def test_a_lapsed_worker_is_waited_for_and_then_followed(
    index: SessionIndex, store: Store
) -> None:
    await hold_lease(store, "w1", lease_s=0.05)
    first = record()
    await registry_of(index, "w1").begin(first, before=None)
    other = registry_of(index, "w2")
    waited = 0
    while True:
        try:
            before = await other.predecessor("t", "conv")
            break
        except (Misdirected, RuntimeUnavailable) as exc:
            waited += isinstance(exc, RuntimeUnavailable)
            await asyncio.sleep(0.01)
    assert waited
    assert before is not None
    await other.begin(record(generation=2, worker="w2"), before=before)
    assert not await registry_of(index, "w1").restore(replace(first, epoch=2))


async def test_of_two_who_take_over_one_wins(index: SessionIndex) -> None:
    drafts = [record(worker=f"w{n}") for n in range(8)]
    tries = (registry_of(index, draft.worker).begin(draft, before=None) for draft in drafts)
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(o).__name__ for o in outcomes) == ["Misdirected"] * 7 + ["NoneType"]
    newest = await index.newest("t", "conv")
    assert newest is not None
    assert outcomes[drafts.index(newest)] is None


async def test_a_worker_that_vouches_first_keeps_its_session(index: SessionIndex) -> None:
    first = record()
    mine, other = registry_of(index, "w1"), registry_of(index, "w2")
    await mine.begin(first, before=None)
    before = await other.predecessor("t", "conv")  # w1 holds no lease: it counts as gone
    assert await mine.restore(replace(first, epoch=2))
    with pytest.raises(Misdirected):
        await other.begin(record(generation=2, worker="w2"), before=before)


async def test_what_redis_forgot_is_unknown_and_not_absent(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    first = record()
    mine, other = registry_of(index, "w1"), registry_of(index, "w2")
    await mine.begin(first, before=None)
    await redis_server.flush()
    for asked in (other.predecessor("t", "conv"), other.by_session("t", first.session_id)):
        with pytest.raises(RuntimeUnavailable):
            await asked
    assert await mine.restore(first)
    await up_for_long(store)
    assert await other.by_session("t", first.session_id) == first


async def test_a_restarted_redis_is_not_believed_at_once(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    await redis_server.stop()
    with pytest.raises(RuntimeUnavailable):
        await index.newest("t", "conv")
    await redis_server.start()
    with pytest.raises(RuntimeUnavailable, match="was away"):
        await index.newest("t", "conv")
    await up_for_long(store)
    assert await index.newest("t", "conv") is None


async def test_keys_tell_nothing_and_end_by_themselves(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    """But for the list of workers, from which each is dropped that falls silent."""
    await hold_lease(store, "w1", lease_s=60)
    await store.note_worker("w1", now_ms=await store.now_ms())
    first = record(thread_id="secret-name", asked=ASKED)
    await registry_of(index, "w1").begin(first, before=None)
    await registry_of(index, "w1").end(first, Status.EXPIRED)
    assert await redis_server.keys_without_ttl() == [store.workers_key]
    assert "secret-name" not in await redis_server.everything()


async def test_previews_are_found_by_their_session_until_it_ends(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    first = record()
    mine = registry_of(index, "w1")
    await mine.begin(first, before=None)
    assert await index.previews(first.session_id) is None
    stored = StoredPreview(public=False, created_at=1.0).with_token("secret-token")
    previews = SessionPreviews(tenant="t", session_id=first.session_id, ports={8080: stored})
    mine.previews.keep(previews)
    await mine.publish(previews)
    assert await index.previews(first.session_id) == previews
    assert "secret-token" not in await redis_server.everything()
    key = store.previews_key(first.session_id)
    assert key not in await redis_server.keys_without_ttl()
    await store.delete(key)  # As when Redis was emptied: the worker tells again.
    assert await mine.restore(first)
    assert await index.previews(first.session_id) == previews
    await mine.publish(previews.with_port(8080, None))
    assert await index.previews(first.session_id) is None
    await mine.publish(previews)
    await mine.end(first, Status.EXPIRED)
    assert await index.previews(first.session_id) is None
    assert mine.previews.of(first.session_id) is None


async def test_a_live_session_is_never_forgotten(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    """Whether it began, was vouched for, or follows an earlier life."""
    mine = registry_of(index, "w1")
    begun, vouched = record(asked=ASKED), record(thread_id="vouched", asked=ASKED)
    await mine.begin(begun, before=None)
    assert await mine.restore(vouched)
    lasting = {store.held_key("w1")}
    for each in (begun, vouched):
        lasting.add(store.thread_key("t", each.thread_id))
        lasting.add(store.session_key("t", each.session_id))
        lasting.add(store.asked_key("t", each.session_id))
    assert lasting <= set(await redis_server.keys_without_ttl())
    await store.renew("w1", 1, ttl_s=60, keep_s=60, fields={})
    assert lasting <= set(await redis_server.keys_without_ttl())
    later = record(generation=2)
    await mine.begin(later, before=begun)
    lasting -= {store.session_key("t", begun.session_id), store.asked_key("t", begun.session_id)}
    lasting |= {store.session_key("t", later.session_id)}
    assert set(await redis_server.keys_without_ttl()) - {store.workers_key} == lasting


async def test_an_ended_session_stays_so(registry: Registry) -> None:
    first = record()
    await registry.begin(first, before=None)
    await registry.end(first, Status.CLEANED)
    assert not await registry.restore(first)
    await registry.end(first, Status.LOST)
    for found in (
        await registry.newest("t", "conv"),
        await registry.by_session("t", first.session_id),
    ):
        assert found is not None
        assert found.status == Status.CLEANED


async def test_many_are_vouched_for_in_one_go(registry: Registry) -> None:
    records = [record(thread_id=f"conv-{number}") for number in range(50)]
    for each in records[:10]:
        await registry.begin(each, before=None)
    await registry.end(records[0], Status.CLEANED)
    await registry.begin(record(thread_id="conv-1", generation=2), before=records[1])
    ours = await registry.restore_all(records)
    assert ours == [False, False] + [True] * 48
    assert await registry.restore_all(records) == ours
    found = await registry.by_session("t", records[-1].session_id)
    assert found is not None
    assert found.status == Status.LIVE


async def test_what_a_vanished_worker_had_is_lost_and_then_forgotten(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    first, cleaned = record(), record(thread_id="cleaned")
    gone, here = registry_of(index, "w1"), registry_of(index, "w2")
    for worker in ("w1", "w2"):
        await store.note_worker(worker, now_ms=await store.now_ms())
    for each in (first, cleaned):
        await gone.begin(each, before=None)
    await gone.end(cleaned, Status.CLEANED)
    await index.reap(after_s=60)
    assert await store.worker_ids() == ["w1", "w2"]
    await store.note_worker("w2", now_ms=await store.now_ms() + 60_000)
    await index.reap(after_s=0)
    assert await store.worker_ids() == ["w2"]
    before = await here.predecessor("t", "conv")
    assert before is not None
    assert isinstance(await here.explain(before, TARGET), SessionLost)
    assert isinstance(
        await here.explain(await here.newest("t", "cleaned"), TARGET), SessionNotFound
    )
    assert await redis_server.keys_without_ttl() == [store.workers_key]
    assert not await gone.restore(first)


async def test_nobody_is_forgotten_by_a_redis_that_was_started_anew(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    """What it has may be old: whoever lives has not yet had the time to say so."""
    await redis_server.stop()
    await redis_server.start()
    first = record()
    await registry_of(index, "w1").restore(first)
    await store.note_worker("w1", now_ms=0)
    with pytest.raises(RuntimeUnavailable, match="was away"):
        await index.reap(after_s=0)
    assert await index.held("w1") == [first]


async def test_a_worker_that_leaves_is_remembered_while_it_holds_something(
    index: SessionIndex, store: Store
) -> None:
    """The end of a session may not have been told."""
    await store.note_worker("w1", now_ms=await store.now_ms())
    first = record()
    await registry_of(index, "w1").begin(first, before=None)
    await store.forget_worker("w1")
    assert await store.worker_ids() == ["w1"]
    await registry_of(index, "w1").end(first, Status.LOST)
    await store.forget_worker("w1")
    assert await store.worker_ids() == []


async def test_a_redis_is_not_taken_for_a_new_one_while_workers_live(
    index: SessionIndex, store: Store, redis_server: RedisServer
) -> None:
    for key in (store.marker_key, store.uptime_key):
        await store.expire(key, ttl_s=5)
    await store.uptime(outage_s=60, keep_s=600, renewed=True)
    for key in (store.marker_key, store.uptime_key):
        assert await store._ask("TTL", key) > 5
    assert await index.newest("t", "unknown") is None


async def test_a_thread_named_by_its_session_need_not_wait_for_a_new_redis(
    store: Store, redis_server: RedisServer
) -> None:
    fresh = SessionIndex(store, lease_s=60, grace_s=60)
    first = record(thread_id="same", session_id="same")
    await registry_of(fresh, "w1").begin(first, before=None)
    assert await fresh.newest("t", "same") == first
