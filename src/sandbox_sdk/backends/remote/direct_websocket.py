"""A WebSocket to a server that is reached without a proxy.

The client of websockets takes 0.7 ms of CPU to open one, most of it in what it offers and nobody
here uses. Its frames are used here, as are its errors.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections import deque
from typing import cast

import h11
import httpx
from websockets.exceptions import ConnectionClosedError, InvalidMessage
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from sandbox_sdk.backends.remote.direct_connection import Place, wake
from sandbox_sdk.backends.remote.websocket_opening import Refused

_LONGEST_HEAD = 64 * 1024
_READ_AHEAD = 1 << 20
"""Bytes of messages that are taken from the network before somebody wants them."""
_PING_S = 20.0
"""Keeps what is between here and the server from forgetting the connection."""
_HTTP = b"HTTP/1."
_SWITCHING = (b"HTTP/1.1 101 ", b"HTTP/1.0 101 ")
_PROOF = re.compile(rb"^sec-websocket-accept:[ \t]*(\S+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


async def open_websocket(
    place: Place, target: str, headers: list[tuple[str, str]], *, longest: int
) -> DirectWebSocket:
    """target: the path and query. longest: bytes of a message. Raises Refused, InvalidMessage for
    what is no HTTP, OSError, and httpx.LocalProtocolError for a header that cannot be sent."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {target} HTTP/1.1",
        f"host: {place.authority}",
        "upgrade: websocket",
        "connection: upgrade",
        f"sec-websocket-key: {key}",
        "sec-websocket-version: 13",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if any(_UNSENDABLE.search(line) for line in lines):
        raise httpx.LocalProtocolError("a header has a control character")
    request = "\r\n".join([*lines, "", ""]).encode()
    made = await place.open(lambda: DirectWebSocket(request, key, longest))
    try:
        await made.opened
    except BaseException:
        made.transport.abort()
        raise
    return made


class DirectWebSocket(asyncio.Protocol):
    def __init__(self, request: bytes, key: str, longest: int) -> None:
        """request: the HTTP request that opens it; key: in it."""
        self._request = request
        self._key = key
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._head = b""
        self._refusal: _Refusal | None = None
        self._frames = Protocol(Side.CLIENT, max_size=longest)
        self._messages: deque[str | bytes] = deque()
        self._parts: list[bytes] = []
        """Of a message that has not come whole yet."""
        self._is_text = False
        self._size = 0
        """Bytes of the messages that wait."""
        self._is_full = self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._ping: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "over" if self._is_over else "open" if self.opened.done() else "opening"
        return f"<DirectWebSocket {state} {len(self._messages)} messages>"

    async def recv(self) -> str | bytes:
        """The next message. Raises ConnectionClosedError once there are no more."""
        while not self._messages:
            if self._is_over:
                raise ConnectionClosedError(None, None)
            self._waiter = self._loop.create_future()
            await self._waiter
        message = self._messages.popleft()
        self._size -= len(message)
        if self._is_full and self._size <= _READ_AHEAD and not self.transport.is_closing():
            self._is_full = False
            self.transport.resume_reading()
        return message

    async def send(self, message: str | bytes | memoryview) -> None:
        """Waits while the other end takes none. Raises ConnectionClosedError."""
        if self._is_over:
            raise ConnectionClosedError(None, None)
        if isinstance(message, str):
            frame = Frame(Opcode.TEXT, message.encode())
        else:
            frame = Frame(Opcode.BINARY, message)
        self.transport.write(frame.serialize(mask=True, extensions=[]))
        if self._writable is not None:
            await self._writable
            if self._is_over:
                raise ConnectionClosedError(None, None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is of another class.
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            self._take_frames(data)
        elif self._refusal is not None:
            self._take_refusal(data)
        else:
            self._take_head(data)

    def _take_head(self, data: bytes) -> None:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end and len(head) <= _LONGEST_HEAD and head.startswith(_HTTP[: len(head)]):
            return
        if not head.startswith(_SWITCHING):
            self._refusal = _Refusal()
            self._take_refusal(self._head)
        elif _PROOF.findall(head) != [accept_key(self._key).encode()]:
            self._fail(InvalidMessage("the answer of the server is not one to this WebSocket"))
        else:
            self.opened.set_result(None)
            self._ping = self._loop.call_later(_PING_S, self._send_ping)
            if rest:
                self._take_frames(rest)

    def _take_refusal(self, data: bytes) -> None:
        assert self._refusal is not None
        try:
            answer = self._refusal.feed(data)
        except h11.RemoteProtocolError as exc:
            self._fail(InvalidMessage(str(exc)))
            return
        if answer is not None:
            self._fail(Refused(answer))

    def _fail(self, error: Exception) -> None:
        self._tell(error)
        self.transport.abort()

    def _tell(self, error: Exception) -> None:
        """That it is not opened."""
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # Whoever gave up meanwhile does not want it.

    def _take_frames(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Frame) and event.opcode in _DATA:
                self._take(event)
        for answer in self._frames.data_to_send():  # To pings, and to the end.
            if answer:
                self.transport.write(answer)
            else:
                self.transport.close()
        if self._frames.state is not State.OPEN:
            self._end()
        wake(self._waiter)

    def _take(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._messages.append(whole.decode(errors="replace") if self._is_text else whole)
        self._size += len(whole)
        if self._size > _READ_AHEAD and not self._is_full and not self.transport.is_closing():
            self._is_full = True
            self.transport.pause_reading()

    def _send_ping(self) -> None:
        self.transport.write(Frame(Opcode.PING, b"").serialize(mask=True, extensions=[]))
        self._ping = self._loop.call_later(_PING_S, self._send_ping)

    def eof_received(self) -> None:
        if not self.opened.done():
            self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(exc or InvalidMessage("the server closed the connection"))
        self._end()
        wake(self._waiter)
        wake(self._writable)
        wake(self._closed)

    def _end(self) -> None:
        self._is_over = True
        if self._ping is not None:
            self._ping.cancel()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        wake(self._writable)
        self._writable = None


class _Refusal:
    """An answer that is not the one to a WebSocket, as it comes."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("host", "")]))
        self._http.send(h11.EndOfMessage())
        self._head: h11.Response | None = None
        self._body = b""

    def feed(self, data: bytes) -> httpx.Response | None:
        """The answer once it is whole. b"" is the end. Raises h11.RemoteProtocolError."""
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert self._head is not None
                headers = self._head.headers.raw_items()
                status = self._head.status_code
                return httpx.Response(status, headers=headers, content=self._body)
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return None
