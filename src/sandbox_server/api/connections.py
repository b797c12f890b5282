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
    """An HTTP connection with limits on the time and size of request headers."""

    def __init__(self, limits: ApiLimits, connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes: int | None = 0
        """Received bytes of a header; None while no header is being received."""
        self._request_is_whole = True
        self._refused = False

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
        super().data_received(data)
        if self._header_bytes is None:
            return
        # Not in on_message_begin: most headers come whole, and need no timer.
        if self._deadline is None and not self._request_is_whole:
            self._wait_for_client()
        self._header_bytes += len(data)
        if self._header_bytes > self._limits.header_bytes and not self.transport.is_closing():
            self._refuse(self._too_large())

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, and a URL that is too long for the parser, get an error like others."""
        if len(getattr(self, "url", b"")) >= _LONGEST_URL:
            self._refuse(self._too_large())
        else:
            self._refuse(errors.InvalidRequest(f"{msg.rstrip('.')}; send HTTP/1.1"), 400)

    def _too_large(self) -> errors.FileTooLarge:
        limit = self._limits.header_bytes
        return errors.FileTooLarge(
            f"the request header has more than {limit} bytes; send less", limit_bytes=limit
        )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._request_is_whole = False

    def on_headers_complete(self) -> None:
        self._header_bytes = None
        self._stop_waiting()
        self._connections.set_busy(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._request_is_whole = True
        self.scope["state"][WHOLE] = True
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """From here on it is the connection of a WebSocket, and counts until that is closed."""
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
        ).start(self.app, self.transport, self.connections, self.tasks)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answering() or self.transport.is_closing():
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
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: errors.SandboxError, status: int | None = None) -> None:
        log.info("connection.refused", code=error.code)
        self._refused = True
        self._connections.remove(self)
        self.transport.write(_answer(error, status or error.status))
        self.transport.write_eof()
        self._stop_waiting()
        self._deadline = self.loop.call_later(_LINGER_S, self.transport.close)


def _answer(error: errors.SandboxError, status: int) -> bytes:
    """A complete HTTP response as bytes, outside of uvicorn's request cycle."""
    request_id = uuid4().hex
    answer = error_response(error, request_id, {"X-Request-ID": request_id, "Connection": "close"})
    return response_head(HTTPStatus(status), answer.raw_headers) + bytes(answer.body)
