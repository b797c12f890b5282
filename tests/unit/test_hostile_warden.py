"""A warden that lies in every field of every answer: whoever asks it gets an answer or an error of
ours, in time and in bounded memory.

HOSTILE_WARDEN_S=300 goes on for five minutes.
"""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import Limits
from sandbox_server.api.files import _headers
from sandbox_server.runtime.streams import ByteStream, SocketStream
from sandbox_server.runtime.warden import client, commands, files, link, reconnecting_link
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from sandbox_server.runtime.warden.link import Channel
from sandbox_server.service.answers import (
    EventAnswers,
    ServiceFacts,
    command_info,
    download_info,
    execute_result,
    file_entry,
    session_info,
)
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.registry import Record, Status
from sandbox_warden import frames

MAX_GROWTH = 64 << 20
STUCK_S = 30.0

ABOUT = {
    "version": frames.PROTOCOL_VERSION, "box": "b", "boot": "b", "epoch": 1, "uptime_s": 1.0,
    "idle_s": 0.0, "ran": 0, "cwd": "/workspace", "state": {},
}  # fmt: skip
SUMMARY = {
    "command_id": "c", "idempotency_key": None, "running": True, "exit_code": None, "age_s": 1.0,
    "output_bytes": 0, "late_bytes": 0,
}  # fmt: skip
STANDING = {
    "command_id": "c", "exit_code": 0, "signal": None, "reason": None, "timed_out": False,
    "duration_ms": 1.0, "output_bytes": 3, "cwd": "/workspace", "state_saved": True,
}  # fmt: skip
ENTRY = {
    "name": "f", "path": "/workspace/f", "type": "file", "size": 3, "mode": "0644",
    "modified_at": 1e9, "sha256": None,
}  # fmt: skip
STARTED = {"command_id": "c", "stdin_received": 0}
USAGE = {"cpu_s": 1.0, "memory_bytes": 1, "disk_bytes": 1, "pids": 1}

deep = "[" * 30_000
lies: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 2**31, 2**62, 2**63, 2**64, 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from([float("inf"), float("nan"), 1e300, -1e300, 253402300800.0]),
    st.text(max_size=5),
    st.sampled_from(["", "\0", "\r\nSet-Cookie: a", "\ud800", "\udcff", "é" * 300, "x" * 9000]),
    st.just([]),
    st.just({}),
    st.lists(st.just({"a": [[[]]]}), max_size=2),
)


def lied(honest: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """The JSON of an answer in which some fields are lies, or missing."""
    fields = st.dictionaries(st.sampled_from(sorted(honest)), lies, max_size=2)
    gone = st.sets(st.sampled_from(sorted(honest)), max_size=1)

    def made(changed: dict[str, Any], missing: set[str]) -> bytes:
        body = {k: v for k, v in {**honest, **changed}.items() if k not in missing}
        return json.dumps(body).encode()

    return st.one_of(st.just(json.dumps(honest).encode()), st.builds(made, fields, gone))


def at(offset: int, data: bytes) -> bytes:
    return frames.OFFSET.pack(offset) + data


@dataclass(frozen=True)
class Said:
    """A frame, so many times; on the channel of the request, or on another."""

    kind: int
    payload: bytes
    times: int = 1
    elsewhere: int = 0


def said(kind: int, payload: st.SearchStrategy[bytes]) -> st.SearchStrategy[Said]:
    return st.builds(Said, st.just(kind), payload)


outputs = st.one_of(
    st.sampled_from([at(0, b"abc"), at(3, b"def"), at(2**64 - 1, b"x"), at(0, b""), b"short"]),
    st.binary(max_size=20),
)
gaps = lied({"start": 0, "end": 5})
batches = st.one_of(
    st.lists(lied(ENTRY), max_size=3).map(lambda found: b"[" + b",".join(found) + b"]"),
    st.sampled_from([b"", b"[", b"{}", b"[1]", b"[null]", deep.encode()]),
)
replies = st.one_of(
    lied(STANDING), lied(SUMMARY), lied(ENTRY), lied(USAGE), lied({"received": 3}),
    lied({"truncated": False}), lied({**ABOUT, "commands": [SUMMARY], "commands_truncated": False}),
    st.sampled_from([b"", b"[]", b"{}", deep.encode(), b'{"a":' * 30_000, b"\xff\xfe"]),
)  # fmt: skip
refusals = st.one_of(
    lied({"code": "failed", "message": "m"}),
    st.sampled_from(
        [
            b'{"code": "disk_full", "message": "%s"}' % (b"x" * 900_000),
            b'{"code": "fenced", "message": "\\ud800"}',
            b'{"code": [%s], "message": {"a": 1}}' % (b"[" * 200 + b"]" * 200),
        ]
    ),
)
anything = st.builds(
    Said,
    st.integers(0, 255),
    st.binary(max_size=30),
    st.sampled_from([1, 1, 3, 400]),
    st.sampled_from([0, 0, 1, 2**32 - 1]),
)
floods = st.builds(
    Said,
    st.sampled_from([frames.DATA, frames.EOF, frames.CREDIT, frames.STARTED, frames.STDOUT]),
    st.sampled_from([b"", at(0, b""), json.dumps(STARTED).encode(), b"x" * 60_000]),
    st.sampled_from([40, 2000]),
    st.sampled_from([0, 7]),
)
answers = st.one_of(
    said(frames.STARTED, st.one_of(lied(STARTED), lied({**ENTRY, "sha256": "0" * 64}))),
    said(frames.STDOUT, outputs),
    said(frames.STDERR, outputs),
    said(frames.GAP, gaps),
    said(frames.DATA, st.one_of(batches, st.binary(max_size=5))),
    said(frames.EOF, st.just(b"")),
    said(frames.REPLY, replies),
    said(frames.ERROR, refusals),
    anything,
    floods,
)
scripts = st.lists(
    st.tuples(st.lists(answers, max_size=6), st.sampled_from(["listen", "listen", "close"])),
    min_size=1,
    max_size=3,
)


class HostileBox(WardenBox):
    """Greets as it should, or nearly; then answers each request by the next script."""

    def __init__(self, hello: bytes, scripts: list[tuple[list[Said], str]]) -> None:
        super().__init__("hostile")
        self._hello = hello
        self._scripts = scripts
        self._next = 0
        self.opened = 0
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open_stream(self) -> ByteStream:
        self.opened += 1
        ours, theirs = socket.socketpair()
        try:
            stream = SocketStream(*await asyncio.open_unix_connection(sock=ours))
        except BaseException:  # Whoever asked was in a hurry.
            ours.close()
            theirs.close()
            raise
        self._sockets.append(theirs)
        self._tasks.add(asyncio.create_task(self._serve(theirs)))
        return stream

    async def _serve(self, theirs: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        decoder = frames.Decoder()
        try:
            while data := await reader.read(65536):
                for kind, channel, _ in decoder.feed(data):
                    if kind == frames.HELLO:
                        writer.write(frames.encode(frames.REPLY, channel, self._hello))
                    elif kind < frames.DATA and not await self._answer(writer, channel):
                        return
        except OSError:
            return
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, writer: asyncio.StreamWriter, channel: int) -> bool:
        frames_, then = self._scripts[self._next % len(self._scripts)]
        self._next += 1
        for each in frames_:
            frame = frames.encode(each.kind, each.elsewhere or channel, each.payload)
            for _ in range(0, each.times, 40):
                writer.write(frame * min(each.times, 40))
                await writer.drain()
        return then == "listen"

    async def is_alive(self) -> bool:
        return True

    async def destroy(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()


LIMITS = Limits(
    memory_bytes=1, cpus=1, pids=1, disk_bytes=1, command_timeout_s=1, output_limit_bytes=4096,
    upload_limit_bytes=1, network="none",
)  # fmt: skip
FACTS = ServiceFacts(worker_id="w", runtime="lies", limits=LIMITS)


def session(warden: WardenClient) -> LiveSession:
    record = Record(
        tenant="t", thread_id="x", generation=1, session_id="s", box_id="hostile",
        status=Status.LIVE, created_at=0.0,
    )  # fmt: skip
    return LiveSession(record, HostileBox(b"", []), warden, 60.0, 0.0)


async def told(warden: WardenClient, events: Any) -> None:
    wording = EventAnswers(session(warden), "live", output_limit=4096)
    async with contextlib.aclosing(events):
        async for event in events:
            for each in wording.of(event):
                each.model_dump_json()


async def run(warden: WardenClient) -> None:
    result = await warden.run("echo", timeout_s=0.1, output_limit=4096, stdin=b"input")
    execute_result(result, session(warden), "live").model_dump_json()


async def stream(warden: WardenClient) -> None:
    async with asyncio.timeout(1):  # A client leaves, too.
        await told(warden, warden.stream("echo", timeout_s=0.1, output_limit=4096))


async def attach(warden: WardenClient) -> None:
    async with asyncio.timeout(1):
        await told(warden, warden.attach("c"))


async def result(warden: WardenClient) -> None:
    found = await warden.result("c", output_limit=4096)
    execute_result(found, session(warden), "live").model_dump_json()


async def ended(warden: WardenClient) -> None:
    async with asyncio.timeout(1):
        await warden.ended("c")


async def look(warden: WardenClient) -> None:
    state, usage = await warden.state(), await warden.usage()
    info = session_info(session(warden), FACTS, state, usage, now=1.0)
    info.model_dump_json()
    for summary in state.commands:
        command_info(summary).model_dump_json()


async def download(warden: WardenClient) -> None:
    async with asyncio.timeout(1), warden.get("f", digest=True) as file:
        for name, value in _headers(download_info(file.about)).items():
            assert value.isascii()
            assert not {"\r", "\n", "\0"} & set(name + value)
        got = sum([len(chunk) async for chunk in file])
        assert got == (file.about.size or got)


async def listing(warden: WardenClient) -> None:
    found = await warden.list("f", limit=4)
    assert len(found.entries) <= 4
    for entry in found.entries:
        file_entry(entry).model_dump_json()


async def tunnel(warden: WardenClient) -> None:
    async with asyncio.timeout(1), warden.dial(port=8080) as channel:
        await channel.write(b"abc")
        await channel.end()
        while await channel.read():
            pass


async def feed(warden: WardenClient) -> None:
    await warden._send_stdin("c", b"abc", offset=0, end=False)


async def upload(warden: WardenClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"abc"

    (await warden.put("f", chunks())).model_dump_json()


CALLS: list[Callable[[WardenClient], Awaitable[object]]] = [
    run, stream, attach, result, ended, look, download, listing, upload, tunnel,
    lambda warden: warden.stat("f"),
    lambda warden: warden.signal("c", 9),
    lambda warden: warden.send_stdin("c", b"abc", offset=0),
    lambda warden: warden.set_state({}),
    lambda warden: warden.ping(),
    lambda warden: warden.rename("f", "g"),
]  # fmt: skip


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a liar for half a minute here."""
    for module in (client, commands, files, reconnecting_link, link):
        for name in ("ANSWER_S", "SILENCE_S", "CONNECT_S", "LIST_S", "UNREAD_S", "STALL_S"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(reconnecting_link, "PAUSE_S", 0.0001)


async def one_call(
    call: Callable[[WardenClient], Awaitable[object]],
    hello: bytes,
    script: list[tuple[list[Said], str]],
) -> None:
    box = HostileBox(hello, script)
    warden = WardenClient(box)
    error: Exception | None = None
    try:
        async with asyncio.timeout(STUCK_S):
            await call(warden)
    except (errors.SandboxError, TimeoutError) as exc:
        error = exc
    finally:
        await warden.close()
        await box.destroy()
    if isinstance(error, errors.SandboxError):
        assert (error.status != 500, len(error.message) < 2000) == (True, True), error
    elif error is not None:
        may_wait = (stream, attach, ended, download, tunnel)
        assert call in may_wait, "only who waits for a program of the box may wait"


def own_memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.usefixtures("hurried")
@pytest.mark.timeout(0)
def test_lies_in_every_field() -> None:
    hellos = st.one_of(st.just(json.dumps(ABOUT).encode()), lied(ABOUT))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(CALLS), hellos, scripts)
    def lie(call: Any, hello: bytes, script: list[tuple[list[Said], str]]) -> None:
        asyncio.run(one_call(call, hello, script))

    lie()
    memory = own_memory()
    until = time.monotonic() + float(os.environ.get("HOSTILE_WARDEN_S", "0"))
    while time.monotonic() < until:
        lie()
    assert own_memory() - memory < MAX_GROWTH


@pytest.mark.parametrize("call", [run, feed])
async def test_a_link_that_breaks_at_every_request_is_given_up(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting_link, "PAUSE_S", 0.0001)
    box = HostileBox(json.dumps(ABOUT).encode(), [([], "close")])
    async with WardenClient(box) as warden:
        with pytest.raises(errors.RuntimeUnavailable, match="8 times in a row"):
            await call(warden)
    await box.destroy()
    assert box.opened < 12


async def test_a_link_that_breaks_now_and_then_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting_link, "PAUSE_S", 0.0001)
    monkeypatch.setattr(reconnecting_link, "STEADY_S", 0.0)
    output = [Said(frames.STARTED, json.dumps(STARTED).encode())]
    scripts = [(output, "close")] * 20
    done = [*output, Said(frames.REPLY, json.dumps(STANDING).encode())]
    box = HostileBox(json.dumps(ABOUT).encode(), [*scripts, (done, "listen")])
    async with WardenClient(box) as warden:
        assert (await warden.run("echo")).exit_code == 0
    await box.destroy()
    assert box.opened == 21


def flood(channel: Channel, times: int) -> None:
    for _ in range(times):
        channel.push((frames.EOF, 2, b""))


async def test_output_in_pieces_of_a_byte_waits_for_its_reader() -> None:
    """As much as a warden may send before it is granted more, while nobody reads. More ends this
    channel, and no other."""
    pieces = frames.WINDOW // 9
    lines_ = [frames.encode_at(frames.STDOUT, 2, n, b"x") for n in range(pieces)]
    box = HostileBox(json.dumps(ABOUT).encode(), [([], "listen")])
    warden = WardenClient(box)
    await warden.connect()
    assert warden._link is not None
    channel = warden._link.request(frames.ATTACH, {})
    async with channel:
        for each in frames.Decoder().feed(b"".join(lines_)):
            channel.push(each)
        assert channel.lost is None
        flood(channel, pieces)
        with pytest.raises(link.LinkLost, match="granted"):
            await channel.receive()
    assert warden._link.lost is None
    await warden.close()
    await box.destroy()
