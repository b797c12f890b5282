"""The server's end of a WebSocket, between the network and an ASGI application.

uvicorn's own has the request written out and parsed a second time, which takes as long as
connecting to a box. Frames are those of the library websockets, without extensions.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side
from websockets.utils import accept_key

LOST = "sandbox.lost"
"""Among the extensions of a scope: an asyncio.Event that is set once the connection is lost."""
MAX_MESSAGE = 1 << 20
_READ_AHEAD = 64 * 1024
"""Bytes of messages that are taken from the network before the application wants them."""
_MESSAGE_COST = 64
_PING_S = 20.0
_CLOSING_S = 10.0
"""How long the other end may take to say that it has ended, too."""
_LINGER_S = 0.5
_KEY_BYTES = 16

log = logging.getLogger("uvicorn.error")
Headers = list[tuple[bytes, bytes]]
App = Callable[..., Any]


class NoHandshake(Exception):
    """A request that asks for a WebSocket in a way that there is not."""


def accept_header(http: Mapping[str, Any]) -> bytes:
    """The answer to the key in a request. http: its scope. Raises NoHandshake."""
    headers: Headers = http["headers"]
    if (http["method"], http["http_version"]) != ("GET", "1.1"):
        raise NoHandshake("a WebSocket is opened by GET of HTTP/1.1")
    if [value for name, value in headers if name == b"sec-websocket-version"] != [b"13"]:
        raise NoHandshake("a WebSocket needs one header sec-websocket-version: 13")
    keys = [value.strip() for name, value in headers if name == b"sec-websocket-key"]
    try:
        if len(keys) != 1 or len(base64.b64decode(keys[0], validate=True)) != _KEY_BYTES:
            raise NoHandshake(
                "a WebSocket needs one header sec-websocket-key of 16 bytes in base64"
            )
    except binascii.Error:
        raise NoHandshake("sec-websocket-key is not base64") from None
    return accept_key(keys[0].decode("ascii")).encode("ascii")


class WebSocketProtocol(asyncio.Protocol):
    """Takes over a connection whose request was read, see start()."""

    def __init__(
        self,
        scope: dict[str, Any],
        *,
        accept: bytes,
        default_headers: Headers,
        on_lost: Callable[[], None],
    ) -> None:
        """scope: of the request, as HTTP has it. accept: see accept_header()."""
        self._accept = accept
        self._default_headers = default_headers
        self._on_lost = on_lost
        self._lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._scope = _websocket_scope(scope, self._lost)
        self._frames = Protocol(Side.SERVER, max_size=MAX_MESSAGE, logger=log)
        self._events: deque[dict[str, Any]] = deque([{"type": "websocket.connect"}])
        self._queued = 0
        """About as many bytes as the queued messages have."""
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._early = b""
        """Frames that came before the handshake was answered."""
        self._parts: list[bytes] = []
        """Of a message that has not come whole yet."""
        self._is_text = False
        self._is_open = self._is_over = False
        """Whether the handshake was answered; whether nothing more can be sent."""
        self._denial: tuple[int, Headers] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Of the next ping, later of the end."""

    def start(
        self,
        app: App,
        transport: asyncio.Transport,
        connections: set[Any],
        tasks: set[Any],
        early: bytes = b"",
    ) -> None:
        """Run the application. connections and tasks: those of the server, which ends them. early:
        what came with the request."""
        self._transport = transport
        self._early = early
        self._connections = connections
        transport.set_protocol(self)
        connections.add(self)
        task = self._loop.create_task(self._run(app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _run(self, app: App) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        except ClientDisconnected:
            pass
        except Exception:
            log.exception("a WebSocket failed")
        if not self._is_open and not self._is_over:
            self._answer(500, [], b"")
        if self._timer is None or not self._is_over:
            self._transport.close()

    # --- from the network ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._is_open:  # Nothing may be said before the answer, not even to a ping.
            self._early += data
            if len(self._early) > _READ_AHEAD:
                self._pause(True)
            return
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Frame):
                self._take(event)
        answers = self._frames.data_to_send()  # To pings, to the end and to what breaks the rules.
        if answers and not self._transport.is_closing():
            self._transport.write(b"".join(answers))
        if self._frames.close_rcvd is not None or (self._frames.close_sent and not self._is_over):
            self._close_now()

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._parts.append(bytes(frame.data))
        if not frame.fin or self._is_over:
            return
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        if self._is_text:
            try:
                self._push({"type": "websocket.receive", "text": whole.decode()}, len(whole))
            except UnicodeDecodeError:
                self._frames.fail(CloseCode.INVALID_DATA, "not UTF-8")
        else:
            self._push({"type": "websocket.receive", "bytes": whole}, len(whole))

    def _close_now(self) -> None:
        """The other end has ended it, or broken the rules."""
        close = self._frames.close_rcvd or self._frames.close_sent
        code, reason = (close.code, close.reason) if close else (1006, "")
        if not self._is_over:
            self._push({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._end()
        if self._frames.close_rcvd is not None:
            self._transport.close()
        else:  # A client that is cut off while it sends does not read why.
            self._timer = self._loop.call_later(_LINGER_S, self._transport.close)

    def eof_received(self) -> None:
        """Then it is closed."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end()
        self._connections.discard(self)
        self._push({"type": "websocket.disconnect", "code": 1005 if self._is_open else 1006})
        self._lost.set()
        self._on_lost()
        _wake(self._writable)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        _wake(self._writable)
        self._writable = None

    def shutdown(self) -> None:
        """The server stops."""
        if not self._is_over:
            self._close(CloseCode.SERVICE_RESTART, "", status=500)
        self._end()
        self._transport.close()

    # --- to and from the application -------------------------------------------------------------

    def _push(self, event: dict[str, Any], size: int = 0) -> None:
        self._events.append(event)
        self._queued += size + _MESSAGE_COST
        if self._queued > _READ_AHEAD:
            self._pause(True)
        _wake(self._waiter)

    async def _receive(self) -> dict[str, Any]:
        while not self._events:
            self._waiter = self._loop.create_future()
            await self._waiter
        event = self._events.popleft()
        if not self._events:
            self._queued = 0
            self._pause(False)
        return event

    def _pause(self, wanted: bool) -> None:
        """Whether to read nothing more for now."""
        if self._is_paused == wanted or self._transport.is_closing():
            return
        self._is_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def _send(self, message: dict[str, Any]) -> None:
        if self._writable is not None:
            await self._writable
        if self._lost.is_set() or self._is_over:
            raise ClientDisconnected
        match message["type"]:
            case "websocket.send":
                if (data := message.get("bytes")) is not None:
                    self._frame(Opcode.BINARY, data)
                else:
                    self._frame(Opcode.TEXT, message["text"].encode())
            case "websocket.accept":
                self._open(message.get("subprotocol"), message.get("headers") or [])
            case "websocket.close":
                self._close(message.get("code", 1000), message.get("reason") or "")
            case "websocket.http.response.start":
                self._denial = message["status"], list(message.get("headers") or [])
            case "websocket.http.response.body":
                assert self._denial is not None
                assert not message.get("more_body"), "an answer that comes in pieces"
                self._answer(*self._denial, message.get("body", b""))

    def _open(self, subprotocol: str | None, headers: Headers) -> None:
        told = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", self._accept),
            *self._default_headers,
            *headers,
        ]
        if subprotocol:
            told.append((b"sec-websocket-protocol", subprotocol.encode("latin-1")))
        self._is_open = True
        self._transport.write(response_head(HTTPStatus.SWITCHING_PROTOCOLS, told))
        self._timer = self._loop.call_later(_PING_S, self._ping)
        early, self._early = self._early, b""
        if early:
            self._pause(False)
            self.data_received(early)

    def _close(self, code: int, reason: str, *, status: int = 403) -> None:
        """status: of the answer if it is not open."""
        if not self._is_open:
            self._answer(status, [], b"")
            return
        self._push({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._frames.send_close(code, reason)
        self._transport.write(b"".join(self._frames.data_to_send()))
        self._end()
        self._pause(False)
        self._timer = self._loop.call_later(_CLOSING_S, self._transport.close)

    def _answer(self, status: int, headers: Headers, body: bytes) -> None:
        """In place of a WebSocket."""
        told = [
            *headers,
            *self._default_headers,
            (b"connection", b"close"),
        ]
        if not any(name.lower() == b"content-length" for name, _ in headers):
            told.append((b"content-length", str(len(body)).encode()))
        self._transport.write(response_head(HTTPStatus(status), told) + body)
        self._end()
        self._transport.close()

    def _frame(self, opcode: Opcode, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(Frame(opcode, data).serialize(mask=False, extensions=[]))

    def _ping(self) -> None:
        """Keeps what is between here and the other end from forgetting the connection."""
        self._frame(Opcode.PING, b"")
        self._timer = self._loop.call_later(_PING_S, self._ping)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _websocket_scope(http: dict[str, Any], lost: asyncio.Event) -> dict[str, Any]:
    scope = {name: value for name, value in http.items() if name != "method"}
    offered = (value for name, value in http["headers"] if name == b"sec-websocket-protocol")
    return {
        **scope,
        "type": "websocket",
        "scheme": "wss" if http["scheme"] == "https" else "ws",
        "subprotocols": [
            one.strip() for each in offered for one in each.decode("latin-1").split(",")
        ],
        "extensions": {"websocket.http.response": {}, LOST: lost},
    }


def response_head(status: HTTPStatus, headers: Headers) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*lines, b"", b""])


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
