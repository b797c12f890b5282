"""Passing connections on between the processes of one server.

A connection may arrive at any process. The first bytes of a request tell which process should have
it; then the socket goes there, with these bytes, and stays. That is an optimization: whatever is
not passed on is served here, through the routing between processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import structlog

from sandbox_server.api.connections import BoundedProtocol, Connections
from sandbox_server.api.limits import ApiLimits
from sandbox_server.tasks import TaskSet

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Place:
    """The process that should have a request. only: no other can serve it."""

    process: int
    only: bool = False


Where = Callable[[bytes], Place | None]
"""The place of a request, from its first bytes; None to serve it here."""
_LARGEST = 64 * 1024
"""Bytes that go with a connection in one message. More go in a file in memory."""
_HELD_S = 0.05
"""How long the head of a request waits for its body, which says whose it is."""
_AWAY_S = 10.0
"""How long a request waits for the only process that can serve it to be there."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,6})\r\n", re.IGNORECASE)


class Handover:
    """The way of connections from and to one process.

    arriving: where those for this process come in. leaving: the other ends of all processes. up:
    for each process whether it takes connections, in memory that they share.
    """

    def __init__(
        self,
        index: int,
        arriving: socket.socket,
        leaving: Sequence[socket.socket],
        up: memoryview[int],
        where: Where,
    ) -> None:
        self.where = where
        self._index = index
        self._arriving = arriving
        self._leaving = leaving
        self._up = up
        self._tasks: TaskSet[None] = TaskSet()

    def protocol(self, limits: ApiLimits) -> Callable[..., asyncio.Protocol]:
        """The HTTP protocol class for uvicorn, for one server."""
        return partial(PassingProtocol, self, limits, Connections(limits))

    def pass_on(self, transport: asyncio.Transport, data: bytes, process: int) -> bool:
        """Give a connection to another process. False if it has to be served here."""
        if process == self._index or not self._up[process]:
            return False
        fd = transport.get_extra_info("socket").fileno()
        try:
            if len(data) <= _LARGEST:
                socket.send_fds(self._leaving[process], [data], [fd])
            else:
                with _in_memory(data) as file:
                    socket.send_fds(self._leaving[process], [data[:1]], [fd, file.fileno()])
        except OSError:  # Too many are on their way to it.
            return False
        return True

    def is_here(self, process: int) -> bool:
        return process == self._index

    def start(self, make: Callable[..., asyncio.Protocol]) -> None:
        """Take connections of other processes from now on. make: makes their protocols."""
        self._up[self._index] = 1
        loop = asyncio.get_running_loop()
        loop.add_reader(self._arriving.fileno(), self._arrived, make)

    async def stop(self) -> None:
        self._up[self._index] = 0
        asyncio.get_running_loop().remove_reader(self._arriving.fileno())
        await self._tasks.stop()

    def _arrived(self, make: Callable[..., asyncio.Protocol]) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._arriving, _LARGEST + 1, 2)
        except OSError:
            return  # Another event took it, or no descriptor is free.
        if not fds:
            return
        connection, *more = fds
        for file in more:
            with open(file, "rb") as whole:
                data = whole.read()
        self._tasks.start(partial(self._take, socket.socket(fileno=connection), data, make))

    async def _take(
        self, sock: socket.socket, data: bytes, make: Callable[..., asyncio.Protocol]
    ) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: make(first=data), sock)
        except OSError as exc:
            log.info("connection.not_taken", why=str(exc))
            sock.close()


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[BinaryIO]:
    """A file that is nowhere but in memory, at its beginning."""
    with open(os.memfd_create("request"), "w+b") as file:
        file.write(data)
        file.seek(0)
        yield file


class PassingProtocol(BoundedProtocol):
    """An HTTP connection that may go on in another process between two requests."""

    def __init__(
        self,
        handover: Handover,
        limits: ApiLimits,
        connections: Connections,
        *,
        first: bytes = b"",
        **of_uvicorn: Any,
    ) -> None:
        super().__init__(limits, connections, **of_uvicorn)
        self._handover = handover
        self._first = first
        self._held = b""
        self._release: asyncio.TimerHandle | None = None
        self._held_since: float | None = None
        self._passed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._first:  # Served here, so that no two processes pass it to and fro.
            super().data_received(self._first)
            self._first = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_holding()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._passed:
            return
        if self._held:
            data = self._held + data
            self._stop_holding()
        elif not self._is_between_requests():
            super().data_received(data)
            return
        if _is_partial(data):
            self._hold(data, self._serve_held)
            return
        self._pass_or_serve(data)

    def _pass_or_serve(self, data: bytes) -> None:
        place = self._handover.where(data)
        if place is None or (len(data) > _LARGEST and not place.only):
            super().data_received(data)
        elif self._handover.pass_on(self.transport, data, place.process):
            self._passed = True
            self.transport.abort()  # Closes our descriptor; the connection lives on.
        elif place.only and not self._handover.is_here(place.process) and self._may_wait():
            self._hold(data, self._try_again)
        else:
            super().data_received(data)

    def _hold(self, data: bytes, release: Callable[[], None]) -> None:
        self._unset_keepalive_if_required()
        self._held = data
        self._release = self.loop.call_later(_HELD_S, release)

    def _may_wait(self) -> bool:
        """Whether the only process for a request may still come back in time."""
        if self._held_since is None:
            self._held_since = self.loop.time()
            self.transport.pause_reading()  # What follows goes to that process.
        if self.loop.time() - self._held_since < _AWAY_S:
            return True
        self._held_since = None
        self.transport.resume_reading()
        return False

    def _try_again(self) -> None:
        data = self._held
        self._stop_holding()
        if not self.transport.is_closing():
            self._pass_or_serve(data)

    def _serve_held(self) -> None:
        data = self._held
        self._stop_holding()
        if not self.transport.is_closing():
            super().data_received(data)

    def _stop_holding(self) -> None:
        self._held = b""
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def _is_between_requests(self) -> bool:
        return self._request_is_whole and not self._answering() and not self._refused


def _is_partial(data: bytes) -> bool:
    """Whether a small JSON body is still on its way."""
    if not data.startswith(b"POST ") or data.startswith((b"POST /upload_file", b"POST /mcp")):
        return False
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return len(data) < _LARGEST
    length = _LENGTH.search(head + b"\r\n")
    return length is not None and len(body) < int(length[1]) <= _LARGEST - len(head)
