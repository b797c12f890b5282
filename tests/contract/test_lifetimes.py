"""Sessions that end at a time of their own, what is written on them, and how they are found again,
through every way to reach a Sandboxes."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import CreateSessionRequest, Session, Target, checked
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .test_sandboxes import run, thread

pytestmark = pytest.mark.wire

PATIENCE_S = 30.0


async def made(sandboxes: Sandboxes, name: str, **options: Any) -> Session:
    return await sandboxes.create_session(CreateSessionRequest(thread_id=name, **options))


async def gone(sandboxes: Sandboxes, session: Session) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while session.session_id in [s.session_id for s in (await sandboxes.sessions()).sessions]:
            await asyncio.sleep(0.05)


async def names(sandboxes: Sandboxes, **wanted: Any) -> list[str]:
    return [each.thread_id for each in (await sandboxes.sessions(**wanted)).sessions]


@pytest.mark.seam
async def test_a_lifetime_ends_a_session_whatever_runs_in_it(sandboxes: Sandboxes) -> None:
    session = await made(sandboxes, "short", lifetime_s=8)  # A pod may take some of it.
    assert session.end_at is not None
    assert session.end_at - session.created_at < timedelta(seconds=60)
    assert session.expires_at == session.end_at
    await run(sandboxes, "short", "echo kept > file; sleep 1000", background=True)
    await gone(sandboxes, session)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(Target(session_id=session.session_id))
    again = await run(sandboxes, "short", "cat file")
    assert (again.session_state, again.generation, again.exit_code) == ("recreated", 2, 1)
    next_one = await sandboxes.session(thread("short"))
    assert next_one.end_at is not None  # It is like the one before.


async def test_a_lifetime_can_be_changed(sandboxes: Sandboxes) -> None:
    session = await made(sandboxes, "changed")
    assert session.end_at is None
    now = datetime.now(UTC)
    told = await sandboxes.set_lifetime(thread("changed"), 600)
    assert told.end_at is not None
    assert timedelta(seconds=590) < told.end_at - now < timedelta(seconds=660)
    shorter = await sandboxes.set_lifetime(thread("changed"), 60, only_longer=True)
    assert shorter.end_at == told.end_at
    longer = await sandboxes.set_lifetime(thread("changed"), 3600, only_longer=True)
    assert longer.end_at is not None
    assert longer.end_at > told.end_at
    assert (await sandboxes.session(thread("changed"))).end_at == longer.end_at
    endless = await sandboxes.set_lifetime(thread("changed"), 0)
    assert endless.end_at is None
    assert (await sandboxes.set_lifetime(thread("changed"), 60, only_longer=True)).end_at is None
    await sandboxes.set_lifetime(thread("changed"), 0.1)
    await gone(sandboxes, session)


async def test_nothing_lives_on_because_somebody_asks_in_the_last_moment(
    sandboxes: Sandboxes,
) -> None:
    session = await made(sandboxes, "late")
    target = Target(session_id=session.session_id)
    await sandboxes.set_lifetime(target, 0.01)
    await asyncio.sleep(0.02)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(target)
    assert (await run(sandboxes, "late", "echo new")).generation == 2


async def test_lifetimes_of_sessions_that_are_not_there(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.set_lifetime(thread("nobody"), 60)
    with pytest.raises(errors.InvalidRequest, match="lifetime_s"):
        await sandboxes.set_lifetime(thread("nobody"), 40 * 86400)
    with pytest.raises(errors.InvalidRequest, match="lifetime_s"):
        await sandboxes.set_lifetime(thread("nobody"), -1)


# Standing still


TICKS = "while true; do date +%s%N > next; mv next tick; sleep 0.02; done"


@pytest.mark.seam
async def test_a_paused_session_stands_still_until_it_is_used(sandboxes: Sandboxes) -> None:
    command_id = (await run(sandboxes, "calm", TICKS, background=True, timeout=600)).command_id
    await run(sandboxes, "calm", "until [ -e tick ]; do sleep 0.01; done")
    paused = await sandboxes.pause(thread("calm"))
    assert paused.state == "paused"
    assert (await sandboxes.pause(thread("calm"))).state == "paused"
    assert await names(sandboxes, state="paused") == ["calm"]
    assert [each.state for each in (await sandboxes.sessions(state="paused")).sessions] == [
        "paused"
    ]
    commands = (await sandboxes.commands(thread("calm"))).commands
    assert [each.command_id for each in commands if each.running] == [command_id]
    assert paused.expires_at - datetime.now(UTC) > timedelta(hours=23)
    await sandboxes.set_lifetime(thread("calm"), 600)  # Is no use.
    assert (await sandboxes.session(thread("calm"))).state == "paused"
    going = await sandboxes.unpause(thread("calm"))
    assert going.state == "busy"
    assert (await sandboxes.unpause(thread("calm"))).state == "busy"
    await sandboxes.pause(thread("calm"))
    result = await run(sandboxes, "calm", "a=$(cat tick); sleep 0.2; [ $a != $(cat tick) ]")
    assert (result.exit_code, result.session_state) == (0, "live")
    assert (await sandboxes.session(thread("calm"))).state == "busy"
    await sandboxes.signal(thread("calm"), command_id, signal="KILL")


async def test_time_limits_stand_still_too(sandboxes: Sandboxes) -> None:
    command_id = (
        await run(sandboxes, "limit", "sleep 2; echo done", background=True, timeout=4)
    ).command_id
    await sandboxes.pause(thread("limit"))
    await asyncio.sleep(4.5)
    assert (await sandboxes.result(thread("limit"), command_id)).exit_code is None
    await sandboxes.unpause(thread("limit"))
    async with asyncio.timeout(PATIENCE_S):
        while (found := await sandboxes.result(thread("limit"), command_id)).exit_code is None:
            await asyncio.sleep(0.05)
    assert (found.exit_code, found.output, found.timed_out) == (0, "done\n", False)


async def test_files_and_input_wake_a_session(sandboxes: Sandboxes) -> None:
    command_id = (
        await run(sandboxes, "wakes", "read a; echo got $a", background=True, stdin_open=True)
    ).command_id
    for use in (
        lambda: sandboxes.list_files(thread("wakes")),
        lambda: sandboxes.send_stdin(thread("wakes"), command_id, b"it\n"),
    ):
        await sandboxes.pause(thread("wakes"))
        await use()
        assert (await sandboxes.session(thread("wakes"))).state != "paused"
    async with asyncio.timeout(PATIENCE_S):
        while (found := await sandboxes.result(thread("wakes"), command_id)).exit_code is None:
            await asyncio.sleep(0.05)
    assert found.output == "got it\n"


async def test_a_lifetime_may_end_in_a_pause(sandboxes: Sandboxes) -> None:
    await made(sandboxes, "rests", pause_at_end=True)
    await run(sandboxes, "rests", "echo kept > file")
    await sandboxes.set_lifetime(thread("rests"), 0.1)
    async with asyncio.timeout(PATIENCE_S):
        while (found := await sandboxes.session(thread("rests"))).state != "paused":
            await asyncio.sleep(0.05)
    assert found.end_at is None
    result = await run(sandboxes, "rests", "cat file")
    assert (result.output, result.session_state) == ("kept\n", "live")


async def test_a_paused_session_can_end(sandboxes: Sandboxes) -> None:
    session = await made(sandboxes, "ends", lifetime_s=600)
    await run(sandboxes, "ends", "sleep 1000", background=True)
    await sandboxes.pause(thread("ends"))
    await sandboxes.set_lifetime(thread("ends"), 0.1)
    await gone(sandboxes, session)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.pause(thread("ends"))
    await run(sandboxes, "cleaned", "sleep 1000", background=True)
    await sandboxes.pause(thread("cleaned"))
    await sandboxes.cleanup(thread("cleaned"))


# What is written on them


async def test_metadata(sandboxes: Sandboxes) -> None:
    odd = {"user": "42", "what is it?": "a=1&b=ü", "empty": ""}
    session = await made(sandboxes, "noted", metadata=odd)
    assert session.metadata == odd
    assert (await sandboxes.session(thread("noted"))).metadata == odd
    again = await made(sandboxes, "noted", metadata={"user": "43"})
    assert (again.metadata, again.not_applied) == (odd, ["metadata"])
    assert (await made(sandboxes, "noted")).not_applied == []
    assert await names(sandboxes, metadata=urlencode(odd)) == ["noted"]
    ended = await sandboxes.cleanup(thread("noted"))
    assert ended.metadata == odd
    with pytest.raises(errors.InvalidRequest, match="metadata has 8201 bytes"):
        checked(CreateSessionRequest, metadata={"a": "x" * 8200})


@pytest.mark.seam
async def test_sessions_are_found_by_what_they_have(sandboxes: Sandboxes) -> None:
    began = datetime.now(UTC)
    await made(sandboxes, "a", metadata={"user": "1", "app": "notes"})
    await made(sandboxes, "b", metadata={"user": "2", "app": "notes"})
    between = (await sandboxes.session(thread("b"))).created_at
    await made(sandboxes, "c", metadata={"user": "2", "app": "mail"})
    assert await names(sandboxes) == ["a", "b", "c"]
    assert await names(sandboxes, order="newest") == ["c", "b", "a"]
    assert await names(sandboxes, metadata="app=notes") == ["a", "b"]
    assert await names(sandboxes, metadata="app=notes&user=2") == ["b"]
    assert await names(sandboxes, metadata="app=nothing") == []
    assert await names(sandboxes, created_after=began - timedelta(minutes=1)) == ["a", "b", "c"]
    assert await names(sandboxes, created_after=between) == ["c"]
    assert await names(sandboxes, state="busy") == []
    assert await names(sandboxes, state="idle") == ["a", "b", "c"]
    assert await names(sandboxes, environment="Other") == []


async def test_pages(sandboxes: Sandboxes) -> None:
    for name in "abc":
        await made(sandboxes, name, metadata={"odd": str(name in "ac")})
    for order, expected in (("oldest", "abc"), ("newest", "cba")):
        found, after = "", None
        for _ in expected:
            page = await sandboxes.sessions(order=order, limit=1, after=after)
            (only,) = page.sessions
            found, after = found + only.thread_id, page.next
        assert (found, after) == (expected, None)
    first = await sandboxes.sessions(limit=1)
    await sandboxes.cleanup(thread("a"))
    second = await sandboxes.sessions(limit=1, after=first.next)
    assert [each.thread_id for each in second.sessions] == ["b"]  # Pages do not shift.
    odd = await sandboxes.sessions(limit=3, metadata="odd=True")
    assert ([each.thread_id for each in odd.sessions], odd.next) == (["c"], None)


async def test_questions_that_cannot_be_answered(sandboxes: Sandboxes) -> None:
    for wanted in ({"after": "nonsense"}, {"limit": 0}, {"limit": 1001}, {"order": "any"}):
        with pytest.raises(errors.InvalidRequest, match=next(iter(wanted))):
            await sandboxes.sessions(**wanted)
