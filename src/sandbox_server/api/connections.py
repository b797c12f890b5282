"""Connections, bounded: in number, and in how long and how much a client may take to say what it
wants. uvicorn waits for a header for ever, and takes one of any size."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandbox_sdk.protocol.errors import Capacity, FileTooLarge, RequestTimeout, SandboxError
from sandbox_server.api.errors import error_response
from sandbox_server.api.limits import ApiLimits

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_LINGER_S = 0.5
"""A client whose connection is closed while it sends does not get to read the answer."""


def bounded_protocol(limits: ApiLimits) -> Callable[..., asyncio.Protocol]:
    """What uvicorn takes as its HTTP protocol, for one server."""
    return functools.partial(BoundedProtocol, limits, Crowd(limits))


class Crowd:
    """All connections of a server. Where there are too many, those without a request are closed,
    the longest idle first, so that they never keep out a client with a request."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self._busy: set[BoundedProtocol] = set()
        self._idle: dict[BoundedProtocol, None] = {}

    def __repr__(self) -> str:
        return f"<Crowd {len(self._busy)} busy, {len(self._idle)} idle>"

    def admit(self, one: BoundedProtocol) -> bool:
        """Whether there is room for another connection, which is idle at first."""
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
    """A connection whose client has to be done with a header in time."""

    def __init__(self, limits: ApiLimits, crowd: Crowd, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._crowd = crowd
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes: int | None = 0
        """How much has come of a header; None while none is under way."""
        self._request_is_whole = True
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._crowd.admit(self):
            self._wait_for_client()
        else:
            limit = self._limits.connections
            self._refuse(Capacity(
                f"at capacity: {limit} of {limit} connections; retry in {_RETRY_S:g} s",
                retry_after_s=_RETRY_S))  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._crowd.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        super().data_received(data)
        if self._header_bytes is None:
            return
        self._header_bytes += len(data)
        if self._header_bytes > self._limits.header_bytes and not self.transport.is_closing():
            limit = self._limits.header_bytes
            self._refuse(FileTooLarge(f"the request header has more than {limit} bytes; send less",
                                      limit_bytes=limit))  # fmt: skip

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._request_is_whole = False
        if self._deadline is None:
            self._wait_for_client()

    def on_headers_complete(self) -> None:
        self._header_bytes = None
        self._stop_waiting()
        self._crowd.set_busy(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._request_is_whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answering() or self.transport.is_closing():
            return
        self._crowd.set_idle(self)
        # Bodies are waited for by those who read them, and nobody reads this one any more.
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
        if self._answering():  # A second request came before the first was answered.
            self._wait_for_client()
        elif self._header_bytes:
            within_s = self._limits.header_timeout_s
            self._refuse(RequestTimeout(
                f"the request's header did not come within {within_s:g} s; send it again",
            ))  # fmt: skip
        else:
            self.transport.close()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: SandboxError) -> None:
        log.info("connection.refused", code=error.code)
        self._refused = True
        self._crowd.remove(self)
        self.transport.write(_answer(error))
        self.transport.write_eof()
        self._stop_waiting()
        self._deadline = self.loop.call_later(_LINGER_S, self.transport.close)


def _answer(error: SandboxError) -> bytes:
    """A whole answer, outside of any request."""
    request_id = uuid4().hex
    answer = error_response(error, request_id, {"X-Request-ID": request_id, "Connection": "close"})
    head = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
    head += [name + b": " + value for name, value in answer.raw_headers]
    return b"\r\n".join([*head, b"", bytes(answer.body)])
