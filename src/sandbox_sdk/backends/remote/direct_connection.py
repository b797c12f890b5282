"""HTTP/1.1 connections to one server, parsed by h11, and those of them that wait to be used again.

Their errors are httpx's: ConnectError and ConnectTimeout only if nothing can have been sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import h11
import httpx

_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)
_READ_AHEAD = 256 * 1024
"""Bytes of an answer that are taken from the network before somebody wants them."""
LONGEST_HEAD = 256 * 1024
"""Bytes: the path of a downloaded file comes as a header."""
_STAGGER_S = 0.25
"""How long one address of a name is tried before the next is tried beside it."""


@dataclass(frozen=True)
class Place:
    """Where a server listens."""

    host: str
    port: int
    unix_path: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls, url: httpx.URL, *, verify: bool | ssl.SSLContext, unix_path: str | None = None
    ) -> Place:
        secure = url.scheme == "https"
        tls = _tls(verify) if secure else None
        host = url.raw_host.decode("ascii")
        return cls(host, url.port or (443 if secure else 80), unix_path, tls)

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.tls is not None else 80
        return host if self.port == usual else f"{host}:{self.port}"

    async def open(self, make: Callable[[], _Protocol]) -> _Protocol:
        """A connection with a protocol that make() gives. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.unix_path is not None:
            _, connection = await loop.create_unix_connection(make, self.unix_path)
            return connection
        # Other loops than asyncio's own, such as uvloop, try one address after the other.
        # Python 3.11 may leave a socket open if it is cancelled while it does.
        several = isinstance(loop, asyncio.BaseEventLoop) and not _is_address(self.host)
        options: dict[str, Any] = {"happy_eyeballs_delay": _STAGGER_S} if several else {}
        try:
            _, connection = await loop.create_connection(
                make, self.host, self.port, ssl=self.tls, **options
            )
        except UnicodeError as exc:  # A name with a part of more than 63 characters.
            raise socket.gaierror(socket.EAI_NONAME, str(exc)) from exc
        return connection


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._unread = 0
        """Bytes that h11 has and that no event was made of yet, at most."""
        self._is_full = False
        self._is_lost = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self.unused_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another class.

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._unread += len(data)
        if self._unread > _READ_AHEAD and not self._is_full:
            self._is_full = True
            self._transport.pause_reading()
        wake(self._waiter)

    def eof_received(self) -> None:
        self._is_lost = True
        wake(self._waiter)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._error = exc
        wake(self._waiter)
        wake(self._writable)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        wake(self._writable)
        self._writable = None

    @property
    def is_usable(self) -> bool:
        """Not if anything has come that nobody asked for: it would pass for the next answer."""
        if self._is_lost or self._unread or self._transport.is_closing():
            return False
        # What this loop has not had the time to read, such as the end of the connection.
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return not poll.poll(0)

    async def send(self, head: h11.Request, body: bytes, *, write_s: float | None) -> None:
        parts = [head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        data = b"".join(self._http.send(part) or b"" for part in parts)
        if not self._transport.is_closing():  # If it is, reading tells why.
            self._transport.write(data)
        if self._writable is not None:
            with _translated(httpx.WriteError, httpx.WriteTimeout):
                # A connection that is lost here may have brought an answer before.
                await _wait(self._writable, write_s)

    async def head(self, *, read_s: float | None) -> h11.Response:
        """The answer up to its body."""
        while True:
            event = await self._event(read_s)
            if isinstance(event, h11.Response):
                return event

    async def body(self, *, read_s: float | None) -> bytes:
        """The next piece, b"" at the end."""
        if self._http.their_state is not h11.SEND_BODY:
            return b""
        event = await self._event(read_s)
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _event(self, read_s: float | None) -> Any:
        with _translated(httpx.ReadError, httpx.ReadTimeout):
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._unread = 0
                if self._is_lost:
                    self._end_of_input()
                    continue
                if self._is_full:
                    self._is_full = False
                    self._transport.resume_reading()
                self._waiter = asyncio.get_running_loop().create_future()
                await _wait(self._waiter, read_s)
            return event

    def _end_of_input(self) -> None:
        if self._error is not None:
            raise self._error
        if self._http.their_state is h11.SEND_RESPONSE:
            raise httpx.RemoteProtocolError("server disconnected without a response")
        self._http.receive_data(b"")

    def renew(self) -> bool:
        """Make it ready for another request; False if it cannot have one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        if self._is_full or self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        self._unread = 0
        self.unused_since = time.monotonic()
        return self.is_usable

    def close(self) -> None:
        if self._transport.get_extra_info("ssl_object") is not None:
            self._transport.close()  # TLS says goodbye: some servers wait for that.
        else:
            self._transport.abort()


class Connections:
    """Connections to one place. Close it."""

    def __init__(self, place: Place, limits: httpx.Limits) -> None:
        self._place = place
        self._keep_s = limits.keepalive_expiry or 0.0
        self._most_kept = limits.max_keepalive_connections or 0
        self._used: set[Connection] = set()
        self._kept: list[Connection] = []
        """The one that was used last is used first."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<Connections {len(self._used)} used, {len(self._kept)} kept>"

    async def take(self, *, connect_s: float | None) -> Connection:
        """One to use; give it back. Raises httpx.ConnectError, ConnectTimeout."""
        self._forget_old()
        while self._kept:
            connection = self._kept.pop()
            if connection.is_usable:
                break
            connection.close()
        else:
            with _translated(httpx.ConnectError, httpx.ConnectTimeout):
                async with asyncio.timeout(connect_s):
                    connection = await self._place.open(Connection)
        if self._closed:
            connection.close()
            raise httpx.ConnectError("the client was closed while it connected")
        self._used.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """The next call may use it if its answer was read to the end."""
        if connection not in self._used:
            return
        self._used.discard(connection)
        if connection.renew() and len(self._kept) < self._most_kept:
            self._kept.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._closed = True
        for connection in (*self._used, *self._kept):
            connection.close()
        self._used.clear()
        self._kept.clear()

    def _forget_old(self) -> None:
        before = time.monotonic() - self._keep_s
        while self._kept and self._kept[0].unused_since < before:
            self._kept.pop(0).close()


async def _wait(waiter: asyncio.Future[None], timeout_s: float | None) -> None:
    """Not asyncio.timeout(): every call waits here, and that takes twice as long."""
    if timeout_s is None:
        await waiter
        return
    timer = asyncio.get_running_loop().call_later(timeout_s, _expire, waiter)
    try:
        await waiter
    finally:
        timer.cancel()


def wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


@contextlib.contextmanager
def _translated(
    error: type[httpx.NetworkError], timeout: type[httpx.TimeoutException]
) -> Iterator[None]:
    try:
        yield
    except TimeoutError as exc:
        raise timeout(str(exc)) from exc
    except h11.RemoteProtocolError as exc:
        raise httpx.RemoteProtocolError(str(exc)) from exc
    except OSError as exc:
        raise error(str(exc)) from _told(exc)


def _told(exc: OSError) -> OSError:
    """asyncio joins the errors of several addresses into one text, in which only this is left."""
    refused = f"[Errno {errno.ECONNREFUSED}]"
    return ConnectionRefusedError(str(exc)) if exc.errno is None and refused in str(exc) else exc


def _tls(verify: bool | ssl.SSLContext) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
