"""Sessions that another worker has taken over, as the registry sees them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.store import Store
from sandbox_server.sessions.previews import AllPorts, SessionPreviews
from sandbox_server.sessions.registry import Status
from tests.fleet.conftest import opened_store
from tests.fleet.test_registry import hold_lease, record, registry_of, trusted


@pytest.fixture(params=["redis", "cluster"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(request.param, tmp_path / request.param) as opened:
        yield opened


@pytest.fixture
async def index(any_store: Store) -> SessionIndex:
    return await trusted(any_store)


async def test_what_was_taken_over_stays_so_whatever_its_first_worker_says(
    index: SessionIndex,
) -> None:
    mine, other = registry_of(index, "w1"), registry_of(index, "w2")
    first = record(movable="kubernetes", claims=1)
    await mine.begin(first, before=None)
    taken = replace(first, worker="w2", claims=2, epoch=1)
    assert not await mine.is_elsewhere(first)
    assert await other.restore(taken)
    await other.took(first)
    assert not await mine.restore(replace(first, epoch=9))
    assert await mine.is_elsewhere(first)
    await mine.end(first, Status.LOST)
    assert await other.newest("t", "conv") == taken
    assert await other.by_session("t", first.session_id) == taken
    assert await mine.live() == []
    assert await other.live() == [taken]
    await other.end(taken, Status.CLEANED)
    found = await mine.by_session("t", first.session_id)
    assert found is not None
    assert found.status == Status.CLEANED


async def test_previews_come_along(index: SessionIndex) -> None:
    mine, other = registry_of(index, "w1"), registry_of(index, "w2")
    first = record(movable="kubernetes")
    await mine.begin(first, before=None)
    shown = SessionPreviews(tenant="t", session_id=first.session_id, all_ports=AllPorts())
    await mine.publish(shown)
    await other.took(first)
    assert other.previews.of(first.session_id) == shown


async def test_only_a_worker_that_does_not_come_back_is_gone(
    index: SessionIndex, any_store: Store
) -> None:
    await hold_lease(any_store, "w1", lease_s=0.05)
    await any_store.note_worker("w1", now_ms=await any_store.now_ms())
    first = record(movable="kubernetes")
    await registry_of(index, "w1").begin(first, before=None)
    other = registry_of(index, "w2")
    assert not await other.is_gone("w1")
    async with asyncio.timeout(30):
        while not (gone := await other.gone()):
            await asyncio.sleep(0.01)
    assert gone == {"w1": {first.box_id: first}}
    await hold_lease(any_store, "w1", lease_s=60)
    assert not await other.is_gone("w1")
