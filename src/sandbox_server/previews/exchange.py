"""One request and its response, carried between a browser and a box."""

from __future__ import annotations

import asyncio

import h11

from sandbox_sdk.protocol.errors import Conflict, SandboxError
from sandbox_server.previews.boxes import BoxConnection, BoxConnections, Destination
from sandbox_server.previews.browser import Browser, BrowserGone
from sandbox_server.previews.heads import Asked, to_box, to_browser
from sandbox_server.tasks import stop

_AGAIN = (b"GET", b"HEAD", b"OPTIONS")
"""Methods that may be sent twice."""
_HALF_CLOSED_S = 60.0
"""How long a WebSocket may take to end in one direction after the other."""


class BadAnswer(Exception):
    """What the box sends is no HTTP, or ends too early. begun: the browser has a part of it."""

    def __init__(self, *, begun: bool = False) -> None:
        self.begun = begun


class Exchange:
    def __init__(
        self,
        browser: Browser,
        request: h11.Request,
        asked: Asked,
        boxes: BoxConnections,
        *,
        to: Destination,
        scheme: str,
        host: str | None = None,
    ) -> None:
        """host: the Host header for the box, in place of the browser's."""
        self._browser = browser
        self._request = request
        self._boxes = boxes
        self._asked = asked
        self._to = to
        self._has_body = browser.has_body()
        self._to_box = to_box(request, asked, peer=browser.peer, scheme=scheme, host=host)
        self._begun = False

    async def run(self) -> None:
        """Raises SandboxError if there is no connection to the box, BadAnswer, BrowserGone."""
        may_repeat = bytes(self._request.method) in _AGAIN and not self._has_body
        new = not may_repeat or self._asked.upgrades
        box = await self._boxes.get(self._to, new=new)
        try:
            await self._carried(box)
        except BadAnswer as exc:
            if exc.begun or not (box.reused and may_repeat):
                raise
            # It may have been closed by the box at the moment of its reuse.
            box = await self._boxes.get(self._to, new=True)
            await self._carried(box)

    async def _carried(self, box: BoxConnection) -> None:
        done = False
        try:
            await self._both_ways(box)
            done = True
        except (h11.RemoteProtocolError, h11.LocalProtocolError):
            raise BadAnswer(begun=self._begun) from None
        finally:
            if done:
                self._boxes.put(box)
            else:
                self._boxes.drop(box)

    async def _both_ways(self, box: BoxConnection) -> None:
        """The request and its response at the same time: a box may answer before it has all."""
        sending = asyncio.create_task(self._send(box))
        answering = asyncio.create_task(self._answer(box))
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and (failed := sending.exception()) is not None:
                raise failed
            await answering
        finally:
            await stop(sending, answering)

    async def _send(self, box: BoxConnection) -> None:
        try:
            if not self._has_body:
                await box.send(self._to_box, h11.EndOfMessage())
            else:
                await box.send(self._to_box)
                while data := await self._browser.body():
                    await box.send(h11.Data(data=data))
                await box.send(h11.EndOfMessage())
        except Conflict:
            raise BadAnswer(begun=self._begun) from None  # It was paused meanwhile.
        except SandboxError:
            return  # The box reads no more; what it answers counts.
        if not self._asked.upgrades:
            await self._browser.watch()

    async def _answer(self, box: BoxConnection) -> None:
        """Passes on what has come before it waits for more, so that events arrive one by one."""
        pieces: list[bytes] = []
        while True:
            event = box.http.next_event()
            if event is h11.NEED_DATA:
                await self._flush(pieces)
                try:
                    await box.receive()
                except SandboxError:
                    raise BadAnswer(begun=self._begun) from None
            elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                await self._switch(box, event)
                return
            else:
                pieces.append(self._passed_on(event))
                if isinstance(event, h11.EndOfMessage):
                    await self._flush(pieces)
                    return

    def _passed_on(self, event: object) -> bytes:
        """A part of the response, as the browser gets it."""
        http = self._browser.http
        match event:
            case h11.Response(status_code=status, headers=headers):
                response = h11.Response(status_code=status, headers=to_browser(headers))
                return http.send(response) or b""
            case h11.InformationalResponse(status_code=status, headers=headers):
                if http.their_http_version != b"1.1":
                    return b""
                hint = h11.InformationalResponse(status_code=status, headers=to_browser(headers))
                return http.send(hint) or b""
            case h11.Data():
                return http.send(event) or b""
            case h11.EndOfMessage():
                return http.send(h11.EndOfMessage()) or b""  # Without trailers.
            case _:
                raise BadAnswer(begun=self._begun)

    async def _flush(self, pieces: list[bytes]) -> None:
        if data := b"".join(pieces):
            self._begun = True
            await self._browser.write(data)
        pieces.clear()

    async def _switch(self, box: BoxConnection, event: h11.InformationalResponse) -> None:
        """From here on, bytes."""
        headers = to_browser(event.headers, switches=True)
        response = h11.InformationalResponse(status_code=101, headers=headers)
        browser = self._browser
        first = (browser.http.send(response) or b"") + box.http.trailing_data[0]
        self._begun = True
        await browser.write(first)
        both = (
            asyncio.create_task(_bytes_to_box(browser, box)),
            asyncio.create_task(_bytes_to_browser(browser, box)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(both, timeout=_HALF_CLOSED_S)
        finally:
            await stop(*both)


async def _bytes_to_box(browser: Browser, box: BoxConnection) -> None:
    data = browser.http.trailing_data[0]
    try:
        while data or (data := await browser.reader.read(1 << 16)):
            await box.channel.write(data)
            data = b""
        await box.channel.end()
    except OSError:
        raise BrowserGone from None


async def _bytes_to_browser(browser: Browser, box: BoxConnection) -> None:
    while data := await box.channel.read():
        await browser.write(data)
    if browser.writer.can_write_eof():
        browser.writer.write_eof()
