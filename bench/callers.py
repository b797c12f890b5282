"""Callers that cost next to nothing: each sends one prepared HTTP request again and again over its
own connection, so that the machine's time goes to the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from bench.contestants import WrongAnswer

_END = b"\r\n\r\n"


@dataclass
class Tally:
    """What all callers together have seen."""

    took_ms: list[float] = field(default_factory=list)
    failed: int = 0


class _Caller(asyncio.Protocol):
    def __init__(self, request: bytes, wanted: bytes, until: float, tally: Tally) -> None:
        self._request = request
        self._wanted = wanted
        self._until = until
        self._tally = tally
        self._answer = b""
        self._sent_at = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._answer = b""
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(_END)
        if not end or len(body) < _length(head):
            return
        now = time.perf_counter()
        if head.startswith(b"HTTP/1.1 200 ") and self._wanted in body:
            self._tally.took_ms.append(1000 * (now - self._sent_at))
        else:
            self._tally.failed += 1
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise WrongAnswer(f"an answer without a length: {head!r}")


async def call(url: str, bodies: Sequence[dict[str, str]], *, wanted: str, for_s: float) -> Tally:
    """One caller for each body, all of them at once, for that long."""
    at = urlsplit(url)
    assert at.hostname is not None
    tally = Tally()
    until = time.perf_counter() + for_s
    loop = asyncio.get_running_loop()
    callers = []
    for body in bodies:
        request = _request(at.netloc, json.dumps(body).encode())
        caller = _Caller(request, wanted.encode(), until, tally)
        await loop.create_connection(partial(_same, caller), at.hostname, at.port or 80)
        callers.append(caller.done)
    await asyncio.gather(*callers)
    return tally


def _same(caller: _Caller) -> _Caller:
    return caller


def _request(host: str, body: bytes) -> bytes:
    head = f"POST /execute HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
