"""A warden in a thread of this process, and the client of a server that speaks to it: both ends of
the protocol as they are, over a pair of sockets, without a box."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox_server.runtime.streams import ByteStream, SocketStream
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_warden import frames, paths
from sandbox_warden.door import Door
from sandbox_warden.loop import READ, Loop
from sandbox_warden.meter import Meter
from sandbox_warden.warden import Warden


class NoHold:
    """In place of Hold, which would stop the other children of this process."""

    running: tuple[str, ...] = ()
    pauses = False
    took_s = 0.0

    def end(self) -> None:
        pass


_COUNTED = (frames.DATA, frames.STDOUT, frames.STDERR, frames.RESULT)


class CheckedStream(SocketStream):
    """Checks what the warden sends: no frame is too large, and no channel gets more than was
    granted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._in, self._out = frames.Decoder(frames.MAX_RECEIVED), frames.Decoder()
        self._left: dict[int, int] = {}
        """Bytes that the warden may send yet, by channel."""
        self.faults: list[str] = []
        self.received = 0

    async def read(self) -> bytes:
        data = await super().read()
        self.received += len(data)
        for kind, channel, payload in self._in.feed(data):
            if len(payload) > frames.MAX_PAYLOAD:
                self.faults.append(f"a frame of {len(payload)} bytes")
            if kind in _COUNTED:
                left = self._left.get(channel, frames.WINDOW) - len(payload)
                self._left[channel] = left
                if left < 0:
                    self.faults.append(f"{-left} bytes more than granted in {len(payload)}")
        return data

    async def write(self, data: bytes) -> None:
        self._grant(data)
        await super().write(data)

    def write_now(self, data: bytes) -> bool:
        done = super().write_now(data)
        if done:
            self._grant(data)
        return done

    def _grant(self, data: bytes) -> None:
        for kind, channel, payload in self._out.feed(data):
            if kind == frames.CREDIT:
                granted = frames.OFFSET.unpack(payload)[0]
                self._left[channel] = self._left.get(channel, frames.WINDOW) + granted
            elif kind in frames.REQUEST_KINDS:
                self._left[channel] = frames.WINDOW


class ThreadedWarden(WardenBox):
    def __init__(self) -> None:
        super().__init__("threaded")
        self.streams: list[CheckedStream] = []
        """All that were opened: one more for each that was cut."""
        self._loop = Loop()
        self._calls: list[Callable[[], None]] = []
        self._woken, self._wake = os.pipe()
        self._stopping = False
        with socket.socket() as listener:
            self.warden = Warden(
                self._loop, Door(self._loop, listener, relayed=True), Meter({}, max_pids=0),
                box="b", build="", deadman_s=60, open_files=0,
            )  # fmt: skip
        requests: Any = self.warden._requests
        requests._hold = NoHold
        self._loop.watch(self._woken, READ, lambda _events: self._take_calls())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._loop.turn()

    def _take_calls(self) -> None:
        os.read(self._woken, 4096)
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def call(self, call: Callable[[], None]) -> None:
        """In the thread of the warden."""
        self._calls.append(call)
        os.write(self._wake, b"x")

    async def open_stream(self) -> ByteStream:
        ours, theirs = socket.socketpair()
        fds = theirs.dup().detach(), theirs.detach()
        self.call(lambda: self.warden._connect(*fds, None))
        made = CheckedStream(*await asyncio.open_unix_connection(sock=ours))
        self.streams.append(made)
        return made

    async def quiet(self) -> None:
        """Until the warden sends nothing more: it waits for its reader."""
        before, same = -1, 0
        while same < 3:
            await asyncio.sleep(0.01)
            received = sum(stream.received for stream in self.streams)
            before, same = received, same + 1 if received == before else 0

    def check(self) -> None:
        """One stream carried all that was asked since the last time, and nothing was wrong."""
        streams, self.streams = self.streams, []
        assert [fault for stream in streams for fault in stream.faults] == []
        assert len(streams) == 1

    async def is_alive(self) -> bool:
        return True

    async def destroy(self) -> None:
        self.end()

    def end(self) -> None:
        def stop() -> None:
            self._stopping = True
            for connection in list(self.warden._connections):
                connection.close()

        self.call(stop)
        self._thread.join()
        os.close(self._woken)
        os.close(self._wake)
        self._loop._epoll.close()


@contextmanager
def threaded_warden() -> Iterator[ThreadedWarden]:
    made = ThreadedWarden()
    try:
        yield made
    finally:
        made.end()


def has_places(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Have the warden keep its files in these folders."""
    monkeypatch.setattr(paths, "PLACES", list(map(str, folders)))
    for module in ("sandbox_warden.requests", "sandbox_warden.unpacking"):
        monkeypatch.setattr(f"{module}.PLACES", paths.PLACES)
