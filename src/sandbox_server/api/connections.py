"""Limits on connections: their number, and the time and size of request headers. uvicorn limits
neither of these."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandbox_sdk.protocol import errors
from sandbox_server.api.errors import error_response
from sandbox_server.api.framing import Framing, Unreadable, framing
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.middleware import WHOLE
from sandbox_server.api.websocket_protocol import (
    NoHandshake,
    WebSocketProtocol,
    accept_header,
    response_head,
)

log = structlog.get_logger(__name__)

_LONGEST_URL = 65535
"""Of the parser."""
_RETRY_S = 1.0
_FRAMING_PER_BYTE = 8
"""Of each byte of a body that comes in chunks. The smallest chunk takes 6."""
_LINGER_S = 0.5
"""Delay before closing: a client whose connection is closed while it sends cannot read the
answer."""


def bounded_protocol(limits: ApiLimits) -> Callable[..., asyncio.Protocol]:
    """The HTTP protocol class for uvicorn, for one server."""
    return functools.partial(BoundedProtocol, limits, Connections(limits))


class Connections:
    """All connections of a server. If there are too many, those idle longest are closed, so that
    they never keep out a client with a request."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self._busy: set[BoundedProtocol] = set()
        self._idle: dict[BoundedProtocol, None] = {}

    def __repr__(self) -> str:
        return f"<Connections {len(self._busy)} busy, {len(self._idle)} idle>"

    def admit(self, one: BoundedProtocol) -> bool:
        """Add a connection as idle; False if there is no room."""
        if len(self._busy) >= self._limits.connections:
            return False
        self.set_idle(one)
        return True

    def set_busy(self, one: BoundedProtocol) -> None:
        self._idle.pop(one, None)
        self._busy.add(one)

    def set_idle(self, one: BoundedProtocol) -> None:
        self._busy.discard(one)
        self._idle[one] = None
        room = self._limits.connections - len(self._busy)
        while len(self._idle) > min(room, self._limits.idle_connections):
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.transport.close()

    def remove(self, one: BoundedProtocol) -> None:
        self._idle.pop(one, None)
        self._busy.discard(one)


class BoundedProtocol(HttpToolsProtocol):
    """An HTTP connection with limits on the time and size of request headers. Each request has one
    answer, in the order in which they came; a request that is refused is the last one."""

    def __init__(self, limits: ApiLimits, connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes: int | None = 0
        """Received bytes of a header; None while no header is being received."""
        self._request_is_whole = True
        self._framing: Framing | None = None
        self._framing_bytes = 0
        """Of a body: what it has beside its data, as far as that is more than it may be."""
        self._keep_alive = True
        """Whether the connection may stay open after a request whose client waits to be asked for
        its body, and has sent it."""
        self._unanswered = 0
        """Requests whose headers are complete and whose answers are not."""
        self._refused = False
        self._refusal = b""
        """What is sent once the requests before are answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._connections.admit(self):
            self._wait_for_client()
        else:
            limit = self._limits.connections
            self._refuse(errors.Capacity(
                f"at capacity: {limit} of {limit} connections; retry in {_RETRY_S:g} s",
                retry_after_s=_RETRY_S))  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as switched:
            self._open_websocket(data[switched.args[0] :])
            return
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse_unread()
            return
        if self._header_bytes is None:
            self._bound_framing()
            return
        # Not in on_message_begin: most headers come whole, and need no timer.
        if self._deadline is None and not self._request_is_whole:
            self._wait_for_client()
        self._header_bytes += len(data)
        if self._header_bytes > self._limits.header_bytes and not self.transport.is_closing():
            self._refuse(self._too_large())

    def _bound_framing(self) -> None:
        """Extensions of chunks and trailers go on as long as the client likes, and the parser keeps
        the latter."""
        if not self._request_is_whole and self._framing_bytes > self._limits.header_bytes:
            self._refuse(self._too_large("what is around the body"))

    def _refuse_unread(self) -> None:
        """What is no HTTP, and a URL that is too long for the parser, get an error like others."""
        if len(getattr(self, "url", b"")) >= _LONGEST_URL:
            self._refuse(self._too_large())
        else:
            message = "Invalid HTTP request received; send HTTP/1.1"
            self._refuse(errors.InvalidRequest(message), 400)

    def _too_large(self, what: str = "the request header") -> errors.FileTooLarge:
        limit = self._limits.header_bytes
        return errors.FileTooLarge(
            f"{what} has more than {limit} bytes; send less", limit_bytes=limit
        )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._request_is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._header_bytes is None:
            return  # A trailer: callers would see it or not, as its bytes arrive.
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Raises Unreadable, which ends the parser before it looks for a body."""
        parser = self.parser
        try:
            read = self._framing = framing(
                parser.get_method(),
                parser.get_http_version(),
                self.url,
                self.headers,
                switches=parser.should_upgrade(),
            )
            if read.to_websocket and self._unanswered:
                raise Unreadable("a WebSocket is asked for while an earlier request is answered")
        except Unreadable as exc:
            self._refuse(errors.InvalidRequest(str(exc)), 400)
            raise
        self.expect_100_continue = read.waits
        super().on_headers_complete()
        self._header_bytes = None
        self._framing_bytes = 0
        self._stop_waiting()
        self._connections.set_busy(self)
        if not read.to_websocket:
            self._unanswered += 1
        if read.waits:  # If it is answered without its body, nobody knows whether that comes.
            self._keep_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = max(self._framing_bytes - _FRAMING_PER_BYTE * len(body), 0)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._request_is_whole = True
        self.scope["state"][WHOLE] = True
        if self.expect_100_continue and not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive
            self.cycle.waiting_for_100_continue = False
        super().on_message_complete()

    def shutdown(self) -> None:
        self._keep_alive = False
        super().shutdown()

    def _should_upgrade(self) -> bool:
        return self._framing is not None and self._framing.to_websocket

    def _open_websocket(self, early: bytes) -> None:
        """From here on it is the connection of a WebSocket, and counts until that is closed. early:
        what came behind the request."""
        self._stop_waiting()
        try:
            accept = accept_header(self.scope)
            url = httptools.parse_url(self.url)
        except (NoHandshake, httptools.HttpParserInvalidURLError) as exc:
            self._refuse(errors.InvalidRequest(str(exc)), 400)
            return
        scope = {
            **self.scope,
            "path": self.root_path + unquote(url.path.decode("ascii")),
            "raw_path": url.path,
            "query_string": url.query or b"",
        }
        self.connections.discard(self)
        WebSocketProtocol(
            scope,
            accept=accept,
            default_headers=self.server_state.default_headers,
            on_lost=functools.partial(self._connections.remove, self),
        ).start(self.app, self.transport, self.connections, self.tasks, early)

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        super().on_response_complete()
        if self._answering() or self.transport.is_closing():
            return
        if self._refused:
            self._unset_keepalive_if_required()
            self._end()
            return
        self._connections.set_idle(self)
        # The app has its own timeout for bodies, but does not read this one any more.
        if not self._request_is_whole and self._deadline is None:
            self._wait_for_client()

    def _wait_for_client(self) -> None:
        self._deadline = self.loop.call_later(self._limits.header_timeout_s, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._answering():  # A pipelined request, received before the first was answered.
            self._wait_for_client()
        elif self._header_bytes:
            within_s = self._limits.header_timeout_s
            self._refuse(errors.RequestTimeout(
                f"the request header was not complete within {within_s:g} s; send it again",
            ))  # fmt: skip
        else:
            self.transport.close()

    def _answering(self) -> bool:
        return self._unanswered > 0

    def _refuse(self, error: errors.SandboxError, status: int | None = None) -> None:
        """Nothing more is read. Requests that came before are answered first."""
        log.info("connection.refused", code=error.code)
        self._refused = True
        self._stop_waiting()
        to_head = not self._request_is_whole and self.parser.get_method() == b"HEAD"
        self._refusal = _answer(error, status or error.status, with_body=not to_head)
        if self._header_bytes is None and not self._request_is_whole:
            self._withdraw()
        if not self._answering():
            self._end()

    def _withdraw(self) -> None:
        """What is refused is the body of the newest request: that is its answer, unless it has one
        already."""
        cycle = self.cycle
        if cycle.response_started:
            self._refusal = b""
        if cycle.response_complete:
            return
        if self.pipeline:
            self.pipeline.popleft()  # It waits for answers to others.
        cycle.disconnected = True
        cycle.message_event.set()
        self._unanswered -= 1

    def _end(self) -> None:
        """Send the refusal, and close."""
        self._connections.remove(self)
        self.transport.write(self._refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_waiting()
        self._deadline = self.loop.call_later(_LINGER_S, self.transport.close)


def _answer(error: errors.SandboxError, status: int, *, with_body: bool) -> bytes:
    """A complete HTTP response as bytes, outside of uvicorn's request cycle."""
    request_id = uuid4().hex
    answer = error_response(error, request_id, {"X-Request-ID": request_id, "Connection": "close"})
    return response_head(HTTPStatus(status), answer.raw_headers) + bytes(
        answer.body if with_body else b""
    )
