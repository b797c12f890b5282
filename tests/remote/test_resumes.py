"""Streams that are cut go on where they were: nothing is lost, nothing comes twice."""

import pytest

from sandbox_sdk import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import CommandEvent, ExitEvent, OutputEvent, StartEvent
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from tests.contract.stand import Stand
from tests.remote.conftest import Connect
from tests.remote.proxy import Answers, Closed, Cut, Fault, Proxy, Silent

COUNT = "echo x >> runs; for i in $(seq 40); do echo line $i.; sleep 0.02; done; wc -l < runs"
COUNTED = "".join(f"line {i}.\n" for i in range(1, 41)) + "1\n"


def whole(events: list[CommandEvent]) -> str:
    """The text of a stream, which has to be all there."""
    assert isinstance(events[0], StartEvent)
    assert isinstance(events[-1], ExitEvent)
    assert [event.event for event in events].count("start") == 1
    assert [event.event for event in events].count("exit") == 1
    reached = 0
    for event in events:
        if isinstance(event, OutputEvent):
            assert event.offset == reached
            reached = event.next_offset
    assert reached == events[-1].output_bytes
    return "".join(event.data for event in events if isinstance(event, OutputEvent))


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Closed()],
        [Cut()],
        [Cut(b"event: start")],
        [Cut(b"event: start\ndata: {")],
        [Cut(b"line 5.")],
        [Cut(b"\n\n"), Cut(b"\n\n"), Cut(b"\n\n")],
        [Cut(b"line 9."), Cut(b"line 2"), Cut(b"line 30."), Cut(b'"next_offset"')],
        [Cut(b"event: exit")],
        [Cut(b"event: exit"), Cut(b"event: exit"), Cut(b'"exit_code":0')],
        [Answers("200 OK", "content-type: text/event-stream\r\n")],
        [Cut(b"line 3."), Answers("502 Bad Gateway"), Closed(), Cut(b"line 8.")],
    ],
    ids=repr,
)
async def test_a_stream(
    remote: RemoteBackend, proxy: Proxy, thread_id: str, faults: list[Fault]
) -> None:
    proxy.faults.extend(faults)
    request = ExecuteRequest(thread_id=thread_id, command=COUNT)
    events = [event async for event in remote.stream(request)]
    assert whole(events) == COUNTED
    assert not proxy.faults
    start, end = events[0], events[-1]
    assert isinstance(start, StartEvent)
    assert isinstance(end, ExitEvent)
    assert not start.replayed
    assert not end.replayed
    assert end.session_state == start.session_state


async def test_following(remote: RemoteBackend, proxy: Proxy, thread_id: str) -> None:
    request = ExecuteRequest(thread_id=thread_id, command=COUNT, background=True)
    command_id = (await remote.execute(request)).command_id
    proxy.faults.extend([Cut(), Cut(b"line 5."), Cut(b"line 20.")])
    events = [event async for event in remote.follow(Target(thread_id=thread_id), command_id)]
    assert whole(events) == COUNTED
    proxy.faults.extend([Cut(), Cut(b"line 39.")])
    at = COUNTED.index("line 38.")
    again = remote.follow(Target(thread_id=thread_id), command_id, offset=at)
    text = "".join([e.data async for e in again if isinstance(e, OutputEvent)])
    assert text == COUNTED[at:]


@pytest.mark.parametrize("cut", [b'"next_offset":1}', b"\xf0\x9f", b"\xf0\x9f\x98"])
async def test_in_the_middle_of_a_character(
    remote: RemoteBackend, proxy: Proxy, stand: Stand, thread_id: str, cut: bytes
) -> None:
    """One that the command writes in two parts, and one that is cut on its way."""
    go_on = "until [ -e go ]; do sleep 0.02; done"
    command = f"printf '\\xf0'; {go_on}; printf '\\x9f\\x98\\x80 \\xf0\\x9f\\x98\\x80\\n'"
    proxy.faults.append(Cut(cut))
    events = []
    async for event in remote.stream(ExecuteRequest(thread_id=thread_id, command=command)):
        events.append(event)
        if isinstance(event, OutputEvent) and event.next_offset == 1:
            await stand.sandboxes.execute(ExecuteRequest(thread_id=thread_id, command="touch go"))
    assert whole(events) == "\U0001f600 \U0001f600\n"
    assert not proxy.faults


async def test_half_a_character_at_the_end_is_replaced(
    remote: RemoteBackend, thread_id: str
) -> None:
    request = ExecuteRequest(thread_id=thread_id, command="printf 'a\\xe2\\x82'")
    events = [event async for event in remote.stream(request)]
    assert whole(events) == "a\ufffd"


@pytest.mark.parametrize("after", [b"", b"line 5."])
async def test_silence_is_a_cut(
    remote: RemoteBackend,
    proxy: Proxy,
    thread_id: str,
    after: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandbox_sdk.backends.remote.events.SILENCE_S", 5.0)
    proxy.faults.append(Silent(after))
    request = ExecuteRequest(thread_id=thread_id, command=COUNT)
    events = [event async for event in remote.stream(request)]
    assert whole(events) == COUNTED


async def test_a_stream_that_never_gets_anywhere_is_given_up(
    proxy: Proxy, thread_id: str, connect: Connect
) -> None:
    async with connect(proxy.url, retry_for_s=1) as remote:
        proxy.faults.extend([Cut(b"event: start\n")] * 100)
        request = ExecuteRequest(thread_id=thread_id, command="sleep 60", timeout=90)
        with pytest.raises(errors.RuntimeUnavailable):
            [event async for event in remote.stream(request)]


async def test_a_box_lost_meanwhile_is_told(
    remote: RemoteBackend, proxy: Proxy, stand: Stand, thread_id: str
) -> None:
    """Resumed by its session: a new life of the thread has no such command."""
    proxy.faults.append(Cut(b"begun"))
    request = ExecuteRequest(thread_id=thread_id, command="echo begun; sleep 60", timeout=90)
    stream = remote.stream(request)
    assert isinstance(await anext(stream), StartEvent)
    await stand.lose_box(thread_id)
    with pytest.raises(errors.SessionLost):
        [event async for event in stream]


async def test_leaving_early(remote: RemoteBackend, proxy: Proxy, thread_id: str) -> None:
    stream = remote.stream(ExecuteRequest(thread_id=thread_id, command=COUNT))
    async for event in stream:
        if isinstance(event, OutputEvent):
            break
    await stream.aclose()
    (command,) = (await remote.commands(Target(thread_id=thread_id))).commands
    events = [e async for e in remote.follow(Target(thread_id=thread_id), command.command_id)]
    assert whole(events) == COUNTED
