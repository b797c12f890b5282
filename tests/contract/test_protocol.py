"""Bad input never hangs or crashes the warden, nor the side that listens to it."""

import asyncio
import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from sandbox_server.runtime.warden.link import Link, LinkLost
from sandbox_server.runtime.warden.zipapp import warden_version
from sandbox_warden import frames

HELLO = frames.encode_json(frames.HELLO, 1, {"version": 1, "epoch": 1})


async def answers(
    box: WardenBox, *sent: bytes, wait_s: float = 30.0, expected: int | None = None
) -> list[frames.Frame]:
    """What a warden says to a stream of bytes, until it closes, has said enough or is silent."""
    stream = await box.open_stream()
    decoder = frames.Decoder()
    received: list[frames.Frame] = []
    try:
        for data in sent:
            await stream.write(data)
        async with asyncio.timeout(wait_s):
            while expected is None or len(received) < expected:
                if not (data := await stream.read()):
                    break
                received += decoder.feed(data)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        await stream.close()
    return received


def code_of(frame: frames.Frame) -> str:
    assert frame[0] == frames.ERROR
    return str(json.loads(frame[2])["code"])


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 64,
    struct.pack("!IBI", 2**31, frames.HELLO, 1),
    struct.pack("!IBI", 0, 99, 1),
    frames.encode(frames.HELLO, 1, b"not json"),
    frames.encode(frames.HELLO, 1, b"[1]"),
    frames.encode(frames.RUN, 1, b"{}"),
    frames.encode(frames.REPLY, 1, b"{}"),
    HELLO + frames.encode(frames.STDOUT, 5, b"x"),
    HELLO + frames.encode(frames.RUN, 5, b"{" * 500_000),
    HELLO + frames.encode_json(frames.GET, 9, {"path": "/tmp"}) * 2,
]


async def test_garbage_is_answered_and_the_stream_closed(
    box: WardenBox, warden: WardenClient, subtests: pytest.Subtests
) -> None:
    for garbage in GARBAGE:
        with subtests.test(repr(garbage[:40])):
            received = await answers(box, garbage)
            assert code_of(received[-1]) == "bad_frame"
            assert (await warden.run("echo ok")).output == "ok\n"


async def test_another_version_is_refused_with_the_one_spoken(
    box: WardenBox, subtests: pytest.Subtests
) -> None:
    others: list[dict[str, object]] = [{}, {"versions": [999, 1001]}, {"versions": [0, 0]}]
    for versions in others:
        with subtests.test(str(versions)):
            hello = frames.encode_json(frames.HELLO, 1, {"version": 999, "epoch": 1, **versions})
            (answer,) = await answers(box, hello)
            assert code_of(answer) == "version"
            assert "versions 1 to 1" in json.loads(answer[2])["message"]


async def test_the_highest_version_that_both_know_is_spoken(box: WardenBox) -> None:
    body = {"version": 0, "versions": [0, 999], "epoch": 1, "of a later version": True}
    (answer,) = await answers(box, frames.encode_json(frames.HELLO, 1, body), expected=1)
    assert answer[0] == frames.REPLY
    assert json.loads(answer[2])["version"] == frames.PROTOCOL_VERSION


async def test_frames_of_a_later_version_do_no_harm(box: WardenBox) -> None:
    later = [frames.encode(kind, 7, b"x") for kind in (40, 63, 90, 255)]
    request = frames.encode_json(31, 8, {"later": True})
    ping = frames.encode_json(frames.PING, 9, {"later": True})
    received = await answers(box, HELLO, *later, request, ping, expected=3)
    assert code_of(received[1]) == "unsupported"
    assert [frame[:2] for frame in received[1:]] == [(frames.ERROR, 8), (frames.REPLY, 9)]


@pytest.mark.kernel
async def test_a_warden_says_which_one_it_is(box: WardenBox, warden: WardenClient) -> None:
    assert warden.about is not None
    assert warden.about.build == (await warden.state()).build == warden_version()


BAD_REQUESTS: list[dict[str, object]] = [
    {},
    {"command": "echo"},
    {"command": 5, "command_id": "x", "digest": "d", "output_limit": "many"},
    {"command": "echo", "command_id": "x", "digest": "d", "output_limit": 1e999},
    {"command": "e", "command_id": "x", "digest": "d", "output_limit": 9, "timeout_s": "soon"},
    {"command": "e", "command_id": "x", "digest": "d", "output_limit": 9, "env": [1]},
    {"command": "e", "command_id": "x", "digest": "d", "output_limit": 9, "cwd": 7},
    {"command": "e", "command_id": "x", "digest": "d", "output_limit": 9, "key": {"a": 1}},
]


async def test_bad_requests_are_refused_and_the_stream_goes_on(
    box: WardenBox, subtests: pytest.Subtests
) -> None:
    for body in BAD_REQUESTS:
        with subtests.test(str(body)):
            request = frames.encode_json(frames.RUN, 2, body)
            ping = frames.encode_json(frames.PING, 3, {})
            received = await answers(box, HELLO, request, ping, expected=3)
            assert received[1][1] == 2
            assert code_of(received[1]) in ("invalid_request", "invalid_path")
            assert received[2][:2] == (frames.REPLY, 3)


async def test_half_frames_and_silence_do_not_disturb_others(
    box: WardenBox, warden: WardenClient
) -> None:
    streams = [await box.open_stream() for _ in range(5)]
    for i, stream in enumerate(streams):
        await stream.write(HELLO[: i * 4])
    assert (await warden.run("echo ok")).output == "ok\n"
    for stream in streams:
        await stream.close()


async def ask_for_ever(stream: ByteStream, request: bytes) -> None:
    while True:
        await stream.write(request)


async def test_one_who_asks_and_never_listens_is_left_waiting(
    box: WardenBox, warden: WardenClient
) -> None:
    stream = await box.open_stream()
    await stream.write(HELLO)
    state = frames.encode_json(frames.STATE, 7, {"set": {"x": "y" * 60_000}})
    asking = asyncio.create_task(ask_for_ever(stream, state))
    await asyncio.wait([asking], timeout=3)
    assert not asking.done()
    asking.cancel()
    assert (await warden.run("echo ok")).output == "ok\n"
    usage = await warden.usage()
    assert usage.memory_bytes is None or usage.memory_bytes < 200 << 20
    await stream.close()


FIELDS = "version epoch command command_id digest output_limit path limit signal offset set key env"
values = st.one_of(st.integers(), st.text(max_size=8), st.none(), st.booleans(), st.floats())
bodies = st.dictionaries(st.sampled_from(FIELDS.split()), values, max_size=6)
payloads = st.one_of(st.binary(max_size=40), bodies.map(lambda body: json.dumps(body).encode()))
some_frames = st.builds(frames.encode, st.integers(0, 255), st.integers(0, 5), payloads)
frame_soup = st.lists(st.one_of(st.binary(max_size=60), some_frames), max_size=12)


async def test_fuzz_the_warden(box: WardenBox, warden: WardenClient) -> None:
    """Random frames and random bytes, with and without a hello in front."""
    loop = asyncio.get_running_loop()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.booleans(), frame_soup)
    def fuzz(greet: bool, soup: list[bytes]) -> None:
        sent = [data for data in soup if b"epoch" not in data]
        future = asyncio.run_coroutine_threadsafe(
            answers(box, *([HELLO] if greet else []), *sent, wait_s=0.05), loop
        )
        future.result(timeout=30)

    await asyncio.to_thread(fuzz)
    assert (await warden.run("echo ok")).output == "ok\n"


# The other direction: a warden that lies.


class Liar:
    """A stream whose other end says whatever it was told to say."""

    def __init__(self, *lies: bytes) -> None:
        self._lies = list(lies)

    async def read(self) -> bytes:
        if self._lies:
            return self._lies.pop(0)
        await asyncio.sleep(0.01)
        return b""

    async def write(self, data: bytes) -> None:
        del data

    def write_now(self, data: bytes) -> bool:
        del data
        return False

    async def close(self) -> None:
        pass


ABOUT = {
    "version": 1,
    "box": "liar",
    "boot": "b",
    "epoch": 1,
    "uptime_s": 1.0,
    "idle_s": 0.0,
    "ran": 0,
    "cwd": "/",
    "state": {},
}


class LyingBox(WardenBox):
    """Says hello properly once, then lies."""

    def __init__(self, *lies: bytes) -> None:
        super().__init__("liar")
        self._streams = [Liar(frames.encode_json(frames.REPLY, 1, ABOUT), *lies)]

    async def open_stream(self) -> ByteStream:
        return self._streams.pop() if self._streams else Liar()

    async def is_alive(self) -> bool:
        return bool(self._streams)

    async def destroy(self) -> None:
        pass


@pytest.mark.parametrize(
    "lie",
    [
        b"\xff" * 100,
        frames.encode(frames.REPLY, 2, b"not json"),
        frames.encode(frames.REPLY, 2, b'{"exit_code": 99999}'),
        frames.encode(frames.REPLY, 2, b"{}"),
        frames.encode(frames.GAP, 2, b"{}"),
        frames.encode(frames.GAP, 2, b'{"start": "x", "end": []}'),
        frames.encode(frames.STDOUT, 2, b"x"),
        frames.encode(frames.STARTED, 2, b"[]"),
        frames.encode(frames.ERROR, 2, b'{"code": {"a": 1}}'),
        frames.encode(frames.ERROR, 0, b'{"message": "bye"}'),
        b"".join(frames.encode_at(frames.STDOUT, 2, 0, b"x" * 60_000) for _ in range(60)),
    ],
)
async def test_a_lying_warden_ends_in_an_error(lie: bytes) -> None:
    async with WardenClient(LyingBox(lie)) as client:
        with pytest.raises(errors.SandboxError):
            await client.run("echo")


async def test_a_warden_whose_version_nobody_knows_is_told() -> None:
    box = LyingBox()
    about = {**ABOUT, "version": 7}
    box._streams = [Liar(frames.encode_json(frames.REPLY, 1, about))]
    with pytest.raises(errors.RuntimeUnavailable, match="speaks protocol version 7"):
        await WardenClient(box).connect()


@given(st.lists(st.binary(max_size=200), max_size=10))
@settings(max_examples=50, deadline=None)
def test_fuzz_the_listener(lies: list[bytes]) -> None:
    async def listen() -> None:
        link = Link(Liar(*[lie for lie in lies if lie]))
        try:
            async with asyncio.timeout(5), link.request(frames.PING, {}) as channel:
                while True:
                    await channel.receive()
        except LinkLost:
            pass
        finally:
            await link.close()

    asyncio.run(listen())


class Flood(Liar):
    """Greets, and answers the first request without end, with so much output at a time, or
    with what it is told to say."""

    def __init__(self, hello: Liar, size: int, *, said: bytes = b"") -> None:
        self._hello = hello
        self._size = size
        self._said = said
        self._offset = 0
        self._written = 0
        self._asked = asyncio.Event()

    async def write(self, data: bytes) -> None:
        self._written += 1
        if self._written == 2:
            self._asked.set()

    async def read(self) -> bytes:
        if not self._asked.is_set() and self._hello._lies:
            return await self._hello.read()
        await self._asked.wait()
        await asyncio.sleep(0)
        if self._said:
            return self._said
        piece = frames.encode_at(frames.STDOUT, 2, self._offset, b"x" * self._size)
        self._offset += self._size
        return piece


@pytest.mark.parametrize(("size", "why"), [(0, "from 0 to 0"), (60_000, "output it may keep")])
async def test_a_warden_that_never_stops_sending_is_not_listened_to(size: int, why: str) -> None:
    box = LyingBox()
    box._streams = [Flood(box._streams[0], size)]
    async with WardenClient(box) as client:
        with pytest.raises(errors.RuntimeUnavailable, match=why):
            await client.run("echo", output_limit=4096)


async def test_a_warden_of_a_later_version_is_understood() -> None:
    """Kinds and fields that nobody knows yet, between those that are known."""
    result = {
        "command_id": "c", "exit_code": 0, "signal": None, "reason": None, "timed_out": False,
        "duration_ms": 1, "output_bytes": 2, "cwd": "/", "state_saved": True, "mood": "fine",
    }  # fmt: skip
    said = [
        frames.encode(90, 2, b"news"),
        frames.encode_json(frames.STARTED, 2, {"command_id": "c", "stdin_received": 0, "new": 1}),
        frames.encode(45, 2, b"\xff"),
        frames.encode_at(frames.STDOUT, 2, 0, b"hi"),
        frames.encode_json(frames.REPLY, 2, result),
    ]
    box = LyingBox()
    box._streams = [Flood(box._streams[0], 0, said=b"".join(said))]
    async with WardenClient(box) as client:
        assert (await client.run("echo")).output == "hi"
