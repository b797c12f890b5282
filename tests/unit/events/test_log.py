"""Events in memory: their order, positions, gaps, tenants."""

import asyncio

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import HappeningsRequest
from sandbox_server.events.log import EventLog


def asked(after: str | None = "", **more: object) -> HappeningsRequest:
    return HappeningsRequest.model_validate({"after": after, **more})


async def test_what_came_after_a_position() -> None:
    log = EventLog("w")
    start = (await log.since("acme", asked(None))).next
    for number in range(5):
        log.publish("session.created", "acme", thread_id=f"t{number}", generation=1)
    first = await log.since("acme", asked(start, limit=2))
    assert [each.thread_id for each in first.events] == ["t0", "t1"]
    assert (first.events[0].kind, first.events[0].data) == ("session.created", {"generation": 1})
    assert first.events[0].worker == "w"
    rest = await log.since("acme", asked(first.next))
    assert [each.thread_id for each in rest.events] == ["t2", "t3", "t4"]
    by_id = await log.since("acme", asked(rest.events[0].id))
    assert [each.thread_id for each in by_id.events] == ["t3", "t4"]
    assert (await log.since("acme", asked(rest.next))).events == []
    assert (await log.since("acme", asked(None))).events == []


async def test_of_one_tenant_thread_and_kind() -> None:
    log = EventLog()
    log.publish("session.created", "acme", thread_id="t")
    log.publish("session.created", "globex", thread_id="t")
    log.publish("session.ended", "acme", thread_id="t", reason="cleaned")
    log.publish("session.ended", "acme", thread_id="u", reason="cleaned")
    assert len((await log.since("acme", asked())).events) == 3
    assert len((await log.since("globex", asked())).events) == 1
    assert len((await log.since("acme", asked(thread_id="t"))).events) == 2
    (one,) = (await log.since("acme", asked(thread_id="t", kind="session.ended"))).events
    assert one.data == {"reason": "cleaned"}


async def test_a_gap_is_told() -> None:
    log = EventLog(most=3)
    start = (await log.since("acme", asked(None))).next
    for number in range(5):
        log.publish("session.created", "acme", thread_id=f"t{number}")
    got = (await log.since("acme", asked(start))).events
    assert [each.kind for each in got] == ["gap", *["session.created"] * 3]
    assert [each.thread_id for each in got[1:]] == ["t2", "t3", "t4"]
    # Of another run of the server.
    other = EventLog()
    other.publish("session.created", "acme")
    restarted = await other.since("acme", asked(start))
    assert [each.kind for each in restarted.events] == ["gap", "session.created"]
    assert (await other.since("acme", asked(restarted.next))).events == []
    none = await EventLog().since("acme", asked(start))
    assert [each.kind for each in none.events] == ["gap"]


async def test_waiting() -> None:
    log = EventLog()
    start = (await log.since("acme", asked(None))).next
    waiting = [
        asyncio.create_task(log.since("acme", asked(start, wait=30))),
        asyncio.create_task(log.since("acme", asked(None, wait=30))),
    ]
    await asyncio.sleep(0)
    log.publish("session.created", "globex")
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in waiting)
    log.publish("session.created", "acme", thread_id="t")
    for each in waiting:
        (event,) = (await asyncio.wait_for(each, 10)).events
        assert event.thread_id == "t"
    assert (await log.since("acme", asked(None, wait=0.01))).events == []


@pytest.mark.parametrize("after", ["x", "x.", "x.y", ".-1", "1.1.1", f"a.{'9' * 40}"])
async def test_a_wrong_position(after: str) -> None:
    with pytest.raises(InvalidRequest, match="not a position"):
        await EventLog().since("acme", asked(after))
