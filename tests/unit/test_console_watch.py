"""The live list of the console: one look for all viewers, and only what has changed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import SessionList, SessionSummary
from sandbox_server.console.watch import SessionWatch, Viewer, changes, pause_s, row_of

NOW = 1_800_000_000.0


def session(name: str, **changed: Any) -> SessionSummary:
    at = datetime.fromtimestamp(NOW, UTC)
    fields: dict[str, Any] = {
        "session_id": name, "thread_id": f"thread-{name}", "generation": 1, "worker": "w",
        "runtime": "docker", "created_at": at, "idle_s": 5.0, "expires_at": at, "state": "idle",
    }  # fmt: skip
    return SessionSummary(**{**fields, **changed})


def rows(*sessions: SessionSummary, now: float = NOW) -> dict[str, Any]:
    return {each.session_id: row_of(each, now=now) for each in sessions}


def test_what_only_grows_older_has_not_changed() -> None:
    before = rows(session("a"))
    later = changes(before, rows(session("a", idle_s=65.0), now=NOW + 60))
    assert (later.changed, later.gone) == ([], [])


@pytest.mark.parametrize(
    ("after", "changed", "gone"),
    [
        ([session("a"), session("b")], ["b"], []),
        ([], [], ["a"]),
        ([session("a", state="busy", idle_s=0.0)], ["a"], []),
        ([session("a", idle_s=1.0)], ["a"], []),
    ],
    ids=["new", "ended", "busy", "used"],
)
def test_changes(after: list[SessionSummary], changed: list[str], gone: list[str]) -> None:
    found = changes(rows(session("a")), rows(*after))
    assert [row["session_id"] for row in found.changed] == changed
    assert found.gone == gone


def test_a_busy_session_is_told_once() -> None:
    busy = session("a", state="busy", idle_s=0.0)
    assert changes(rows(busy), rows(busy, now=NOW + 30)).changed == []


def test_looking_takes_a_bounded_share_of_a_core() -> None:
    assert pause_s(0.001) == 1.0
    assert pause_s(0.015) == pytest.approx(3.0)
    assert pause_s(1.0) == 5.0


class Stand:
    """A watch whose looks and pauses a test decides about."""

    def __init__(self) -> None:
        self.looks = 0
        self.found = SessionList(sessions=[])
        self.failure: Exception | None = None
        self._go = asyncio.Semaphore(0)
        self.watch = SessionWatch(self._look, pause=self._pause)

    async def _look(self) -> SessionList:
        self.looks += 1
        if self.failure:
            raise self.failure
        return self.found

    async def _pause(self, _seconds: float) -> None:
        await self._go.acquire()

    def look_again(self) -> None:
        self._go.release()


async def told(frames: AsyncGenerator[bytes]) -> tuple[str, dict[str, Any]]:
    event, data, *_ = (await anext(frames)).decode().split("\n")
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_all_viewers_share_one_look() -> None:
    stand = Stand()
    stand.found = SessionList(sessions=[session("a")])
    first, second = stand.watch.join(), stand.watch.join()
    async with (
        contextlib.aclosing(first.frames(60)) as one,
        contextlib.aclosing(second.frames(60)) as two,
    ):
        for frames in (one, two):
            event, data = await told(frames)
            assert event == "sessions"
            assert [row["thread_id"] for row in data["sessions"]] == ["thread-a"]
        assert stand.looks == 1
        stand.found = SessionList(sessions=[session("b")], unreachable=["w2"])
        stand.look_again()
        for frames in (one, two):
            event, data = await told(frames)
            assert (event, data["gone"], data["unreachable"]) == ("changes", ["a"], ["w2"])
        # Who comes later has the list at once, without another look.
        third = stand.watch.join()
        async with contextlib.aclosing(third.frames(60)) as three:
            event, data = await told(three)
            assert [row["session_id"] for row in data["sessions"]] == ["b"]
        assert stand.looks == 2
    for viewer in (first, second):
        assert stand.watch.leave(viewer) is False
    assert stand.watch.leave(third) is True
    stand.look_again()
    await asyncio.sleep(0)
    assert stand.looks == 2, "nobody looks"


async def test_a_failure_is_told_and_passes() -> None:
    stand = Stand()
    stand.failure = RuntimeUnavailable("no worker answers")
    viewer = stand.watch.join()
    async with contextlib.aclosing(viewer.frames(60)) as frames:
        event, data = await told(frames)
        assert (event, data["message"]) == ("error", "no worker answers")
        stand.failure = None
        stand.look_again()
        assert (await told(frames))[0] == "sessions"
    stand.watch.leave(viewer)


async def test_a_viewer_that_does_not_read_is_sent_away() -> None:
    viewer = Viewer()
    sent = 0
    while viewer.send(b"x"):
        sent += 1
    assert len([frame async for frame in viewer.frames(60)]) == sent


async def test_silence_is_broken_by_comments() -> None:
    async with contextlib.aclosing(Viewer().frames(0.001)) as frames:
        assert (await anext(frames)).startswith(b":")
