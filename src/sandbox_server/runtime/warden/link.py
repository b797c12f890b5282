"""A link: one stream to a warden with many channels.

The warden's frames are hostile input. A malformed or unexpected frame ends the link, and every open
channel raises LinkLost. More bytes than were granted end the channel that they came on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.runtime.streams import ByteStream
from sandbox_warden import frames
from sandbox_warden.frames import Frame, FrameError

_SLACK = frames.MAX_RECEIVED
"""On top of the window: the warden does not count small frames (started, gap, reply), and those of
earlier versions begin a frame as long as the window is not used up."""
_JOINED = 4096
"""Bytes up to which pieces are put together that wait to be read."""
_MAX_FRAMES = 150_000
"""Unread frames on one channel. More than fit into the window if each carries one byte of output
and its offset."""
_MAX_UNASKED = 64 << 20
"""Bytes accepted for closed channels between two requests: more than can be in flight when a
channel is closed."""
_FRAME_COST = 64
_SLICE = 500
"""Frames dispatched before yielding to the event loop."""

STALL_S = 10.0
"""A warden that reads nothing for this long is given up. An engine does not always close the
streams of a box that is gone, and a write to one would never return."""


_COUNTED = (frames.DATA, frames.STDOUT, frames.STDERR, frames.RESULT)
"""Frames that use up the window."""


class LinkLost(Exception):
    """The stream ended, or the warden broke the protocol. The request may have been executed."""


class Channel:
    """One request on a link and its reply frames, open inside `async with`.

    Leaving before its last frame sends CANCEL: the warden stops sending, a command keeps running.
    """

    def __init__(self, link: Link, number: int, request: bytes) -> None:
        self._link = link
        self._request = request
        self.number = number
        self._frames: deque[Frame] = deque()
        self._buffered = 0
        self._consumed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._complete = False
        self._window = frames.WINDOW
        """Bytes that the warden has room for, where it says so."""
        self._sender: asyncio.Future[None] | None = None
        self._ended = False
        """Whether its last frame has come, read or not."""
        self._lost: str | None = None

    @property
    def lost(self) -> str | None:
        """Why no more frames come: the link is lost, or this channel alone."""
        return self._link.lost or self._lost

    async def __aenter__(self) -> Channel:
        self._link.add(self)
        try:
            await self._link.write(self._request)
        except BaseException:
            self._link.forget(self)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._complete:
            self._link.forget(self)
        else:
            await self.leave()

    async def leave(self) -> None:
        """Close it before its end: the warden stops sending."""
        self._link.forget(self)
        if self._link.lost is None:
            with contextlib.suppress(LinkLost):
                await self.send(frames.CANCEL)

    async def receive(self, *, silence_s: float | None = None) -> Frame:
        """The next frame. Raises LinkLost, and TimeoutError after silence_s without one."""
        while not self._frames:
            if self.lost is not None:
                raise LinkLost(self.lost)
            await self._wait(silence_s)
        frame = self._frames.popleft()
        size = len(frame[2])
        self._buffered -= size
        self._complete = frame[0] in (frames.REPLY, frames.ERROR)
        if frame[0] in _COUNTED:
            self._consumed += size
            if self._consumed >= frames.WINDOW // 2:
                await self._credit()
        return frame

    async def _credit(self) -> None:
        granted, self._consumed = self._consumed, 0
        await self.send(frames.CREDIT, frames.OFFSET.pack(granted))

    async def receive_more(self, most: int) -> list[bytes]:
        """The bytes of DATA that have come already, up to so many."""
        pieces, left = [], most
        while self._frames and self._frames[0][0] == frames.DATA:
            payload = self._frames[0][2]
            if len(payload) > left:
                break
            self._frames.popleft()
            left -= len(payload)
            pieces.append(payload)
        self._buffered -= most - left
        self._consumed += most - left
        if self._consumed >= frames.WINDOW // 2:
            await self._credit()
        return pieces

    async def _wait(self, silence_s: float | None) -> None:
        """Not asyncio.timeout(): a command waits here every time, and that takes twice as long."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if silence_s is None else loop.call_later(silence_s, _expire, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def send(self, kind: int, payload: bytes = b"") -> None:
        await self._link.write(frames.encode(kind, self.number, payload))

    async def send_within_window(self, data: bytes) -> None:
        """Send bytes once the warden has room for them: it tells with CREDIT. One at a time. Raises
        LinkLost, also once the warden has ended the request."""
        while self._window < len(data):
            if self.lost is not None or self._ended:
                raise LinkLost(self.lost or "the other end has closed it")
            self._sender = asyncio.get_running_loop().create_future()
            try:
                await self._sender
            finally:
                self._sender = None
        self._window -= len(data)
        await self.send(frames.DATA, data)

    def push(self, frame: Frame) -> None:
        if self._lost is not None:
            return
        if frame[0] == frames.CREDIT:
            self._grant(frame[2])
            return
        if frame[0] == frames.DATA and self._frames and _fits(self._frames[-1], frame):
            # Programs that send byte by byte: the window counts bytes, not frames.
            before = self._frames.pop()[2]
            self._buffered -= len(before)
            frame = (frame[0], frame[1], before + frame[2])
        self._frames.append(frame)
        self._buffered += len(frame[2])
        self._ended = frame[0] in (frames.REPLY, frames.ERROR)
        if self._buffered > frames.WINDOW + _SLACK or len(self._frames) > _MAX_FRAMES:
            self._lost = (
                f"the warden broke the protocol: channel {self.number}: {self._buffered} bytes in"
                f" {len(self._frames)} frames, more than the {frames.WINDOW} bytes granted"
            )
            self._frames.clear()
            self._link.forget(self)
        self.wake()

    def _grant(self, payload: bytes) -> None:
        if len(payload) != frames.OFFSET.size:
            raise FrameError(f"channel {self.number}: CREDIT of {len(payload)} bytes")
        self._window = min(self._window + frames.OFFSET.unpack(payload)[0], frames.WINDOW)
        self._wake(self._sender)

    def wake(self) -> None:
        self._wake(self._waiter)
        if self.lost is not None or self._ended:
            self._wake(self._sender)

    def _wake(self, waiting: asyncio.Future[None] | None) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def _fits(last: Frame, frame: Frame) -> bool:
    return last[0] == frames.DATA and len(last[2]) + len(frame[2]) <= _JOINED


def _encoded(kind: int, channel: int, body: dict[str, Any]) -> bytes:
    """As frames.encode_json, in a fifth of the time. Raises TooLong."""
    try:
        payload = to_json(body)
    except PydanticSerializationError:  # A name that is not UTF-8, as lone surrogates.
        return frames.encode_json(kind, channel, body)
    return frames.encode(kind, channel, payload)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class Link:
    """The server's end of a stream. Whoever creates it closes it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._channels: dict[int, Channel] = {}
        self._number = 0
        self._unasked = 0
        self.lost: str | None = None
        self._reader = asyncio.create_task(self._read())

    def __repr__(self) -> str:
        return f"<Link {len(self._channels)} channels{', ' + self.lost if self.lost else ''}>"

    def request(self, kind: int, body: dict[str, Any]) -> Channel:
        """A channel for this request, which is sent when the channel is entered.

        Raises InvalidRequest if it does not fit into a frame: the warden would end the link.
        """
        self._number = self._number % 0xFFFFFFFE + 1
        self._unasked = 0
        try:
            request = _encoded(kind, self._number, body)
        except frames.TooLong as exc:
            raise InvalidRequest(
                f"request too large for the box: {exc.size} bytes as JSON in UTF-8, at most"
                f" {frames.MAX_PAYLOAD}; send large data as a file, or as stdin"
            ) from None
        return Channel(self, self._number, request)

    def add(self, channel: Channel) -> None:
        self._channels[channel.number] = channel

    async def write(self, frame: bytes) -> None:
        if self.lost is not None:
            raise LinkLost(self.lost)
        try:
            if self._stream.write_now(frame):
                return
            async with asyncio.timeout(STALL_S):
                await self._stream.write(frame)
        except TimeoutError as exc:
            self._lose(f"the warden took no data for {STALL_S:g} s")
            raise LinkLost(self.lost) from exc
        except ConnectionError as exc:
            self._lose(f"the stream broke: {exc}")
            raise LinkLost(str(exc)) from exc

    def forget(self, channel: Channel) -> None:
        self._channels.pop(channel.number, None)

    async def close(self) -> None:
        self._lose("closed")
        self._reader.cancel()
        try:
            await asyncio.gather(self._reader, return_exceptions=True)
        finally:  # Also if the caller is cancelled meanwhile.
            await self._stream.close()

    async def _read(self) -> None:
        decoder = frames.Decoder(frames.MAX_RECEIVED)
        why = "the stream ended"
        try:
            while data := await self._stream.read():
                for number, frame in enumerate(decoder.feed(data), start=1):
                    self._dispatch(frame)
                    if number % _SLICE == 0:
                        await asyncio.sleep(0)
        except FrameError as exc:
            why = f"the warden broke the protocol: {exc}"
        except OSError as exc:
            why = f"the stream broke: {exc}"
        finally:
            self._lose(why)
        await self._stream.close()

    def _dispatch(self, frame: Frame) -> None:
        kind, number, payload = frame
        if number == 0 and kind == frames.ERROR:
            message = frames.decode_json(payload).get("message")
            raise FrameError(
                ascii(message)[:200]
                if isinstance(message, str)
                else "ERROR frame without `message`"
            )
        channel = self._channels.get(number)
        if channel is not None and kind in frames.KINDS:  # A later version may have other kinds.
            channel.push(frame)
            return
        self._unasked += _FRAME_COST + len(payload)
        if self._unasked > _MAX_UNASKED:
            raise FrameError(f"more than {_MAX_UNASKED} bytes on channels that are not open")

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
        for channel in self._channels.values():
            channel.wake()
