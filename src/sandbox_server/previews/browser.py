"""A connection of a browser: HTTP/1.1 towards it, with bounds on size and time."""

from __future__ import annotations

import asyncio

import h11

from sandbox_server.previews.heads import Headers
from sandbox_server.previews.limits import PreviewLimits
from sandbox_server.previews.pages import Page

_CHUNK = 64 * 1024
_LINGER_S = 1.0
_LINGER_BYTES = 4 << 20


_Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class BrowserGone(Exception):
    """The browser has closed the connection, or stalls."""


class Browser:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: PreviewLimits
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._limits = limits
        found = writer.get_extra_info("peername")
        self.peer = found[0] if isinstance(found, tuple) else ""
        self._held: _Event | None = None
        """What follows the head of a request, if that has come with it."""

    async def next_request(self, *, first: bool) -> h11.Request | None:
        """None if there is none any more. Raises RemoteProtocolError for what is not a request,
        TimeoutError if it comes too slowly."""
        limits = self._limits
        async with asyncio.timeout(limits.head_s if first else limits.keep_alive_s):
            event = await self._next()
        if isinstance(event, h11.Request):
            return event
        return None

    async def _next(self) -> _Event:
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                self.http.receive_data(await self.reader.read(_CHUNK))
            except OSError:
                raise BrowserGone from None

    def has_body(self) -> bool:
        """Whether a body follows the request. If none does, its end is taken."""
        if self.http.their_state is not h11.SEND_BODY:
            return False
        if self._held is None:
            try:
                event = self.http.next_event()
            except h11.RemoteProtocolError:
                event = h11.PAUSED  # Reading the body fails then.
            if isinstance(event, h11.EndOfMessage):
                return False
            self._held = event
        return True

    async def body(self) -> bytes:
        """The next piece of the body; b"" at its end. Raises BrowserGone."""
        try:
            async with asyncio.timeout(self._limits.stalled_s):
                while True:
                    held, self._held = self._held, None
                    event = await self._next() if held in (None, h11.NEED_DATA) else held
                    if isinstance(event, h11.Data):
                        if event.data:
                            return bytes(event.data)
                    elif isinstance(event, h11.EndOfMessage):
                        return b""
                    else:
                        raise BrowserGone
        except (h11.RemoteProtocolError, TimeoutError):
            raise BrowserGone from None

    async def watch(self) -> None:
        """Return when more than the request has come. Raises BrowserGone when it leaves."""
        try:
            data = await self.reader.read(_CHUNK)
        except OSError:
            raise BrowserGone from None
        if not data:
            raise BrowserGone
        self.http.receive_data(data)

    async def write(self, data: bytes) -> None:
        """Raises BrowserGone."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(self._limits.stalled_s):
                await self.writer.drain()
        except (OSError, TimeoutError):
            raise BrowserGone from None

    async def respond(
        self, status: int, headers: Headers, body: bytes = b"", *, head: bool, last: bool = False
    ) -> None:
        """A whole response of our own; for head without the body. If a body of the request is not
        read yet, or with last, the connection is closed afterwards."""
        unread = self.has_body()
        if last or unread or self.http.their_state is h11.ERROR:
            headers = [*headers, (b"connection", b"close")]
        events: list[h11.Event] = [h11.Response(status_code=status, headers=headers)]
        if body and not head:
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        await self.write(b"".join(self.http.send(event) or b"" for event in events))

    async def show(
        self, page: Page, *, as_html: bool, head: bool = False, last: bool = False
    ) -> None:
        body = page.body(as_html=as_html)
        headers = page.headers(body, as_html=as_html)
        await self.respond(page.status, headers, body, head=head, last=last)

    async def linger(self) -> None:
        """Take what the browser still sends of a body, for a moment: if it were told at once that
        nobody reads it, it would not read our response."""
        if self.http.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        taken = 0
        try:
            async with asyncio.timeout(_LINGER_S):
                while taken < _LINGER_BYTES and (data := await self.reader.read(_CHUNK)):
                    taken += len(data)
        except (OSError, TimeoutError):
            pass

    def next_cycle(self) -> bool:
        """Whether the connection takes another request."""
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
            return True
        return False
