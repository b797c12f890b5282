"""A link to one warden that reconnects, and requests over it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import BoxAbout, BoxAgent
from sandbox_server.runtime.streams import ByteStream
from sandbox_warden import frames

from .answers import checked
from .link import Channel, Link, LinkLost

ANSWER_S = 30.0
"""Timeout of requests that do not wait for a command."""
CONNECT_S = 10.0
SILENCE_S = 5.0
"""After this long without a frame, check that the warden, or its box, is alive."""
STEADY_S = 5.0
"""A link that lasted this long resets the count of breaks."""
PAUSE_S = 0.05
"""The first pause after a break; it doubles with each further one."""
LONGEST_PAUSE_S = 1.0
_MAX_BREAKS = 8
_T = TypeVar("_T")


class Breaks:
    """Counts how often the link broke during one call, which is retried after each break."""

    def __init__(self, box_id: str) -> None:
        self._box_id = box_id
        self._backoff = Backoff(PAUSE_S, LONGEST_PAUSE_S, most=_MAX_BREAKS)
        self._last = time.monotonic()

    async def pause(self, error: LinkLost) -> None:
        """Wait before the next attempt. Raises RuntimeUnavailable after _MAX_BREAKS in a row."""
        now = time.monotonic()
        if now - self._last > STEADY_S:
            self._backoff.reset()
        pause_s = self._backoff.pause_s(now)
        if pause_s is None:
            raise errors.RuntimeUnavailable(
                f"the link to box {self._box_id} broke {_MAX_BREAKS} times in a row, the last"
                f" because {error}; try again"
            ) from error
        await asyncio.sleep(pause_s)
        self._last = time.monotonic()


class Reachable(Protocol):
    """The part of a box that a link needs."""

    id: str

    async def open_stream(self) -> ByteStream: ...

    async def is_alive(self) -> bool: ...


_LARGE = 4 * frames.CHUNK
"""Pieces of what nothing else waits behind: the box does nothing else meanwhile."""


class ReconnectingLink(BoxAgent):
    """A link to the warden of one box under one epoch, opened again when it breaks."""

    def __init__(self, box: Reachable, *, epoch: int = 1, deadman_s: float | None = None) -> None:
        self._box = box
        self._epoch = epoch
        self._deadman_s = deadman_s
        self._link: Link | None = None
        self.about: BoxAbout | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._uploads, self._at_once = asyncio.Event(), asyncio.Event()
        """Set while what uploads, and others, send may go to the box."""
        self._uploads.set()
        self._at_once.set()
        self._holding = 0

    @property
    def box_id(self) -> str:
        return self._box.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._box!r} epoch {self._epoch} {self._link!r}>"

    async def close(self) -> None:
        """Close the link for good. The box and its commands keep running."""
        self._closed = True
        await self._drop_link()

    async def connect(self) -> None:
        """Open the link, unless it is open.

        Raises SessionLost if the box is gone, Fenced if another owner has it, RuntimeUnavailable
        if the warden cannot be reached.
        """
        await self.get_link()

    async def _ask(
        self,
        expected: type[_T],
        kind: int,
        body: dict[str, Any],
        *,
        repeatable: bool = True,
        long: bool = False,
    ) -> _T:
        """The answer to a request. A repeatable one is sent again once if the link breaks. long:
        with no timeout as long as the warden answers others."""

        async def answer(link: Link, channel: Channel) -> _T:
            receive = self._next if long else self.answer
            return checked(expected, await receive(link, channel))

        return await self._attempt(kind, body, answer, attempts=2 if repeatable else 1, long=long)

    async def _send(
        self, expected: type[_T], kind: int, body: dict[str, Any], chunks: AsyncIterable[bytes]
    ) -> _T:
        """The answer to a request with bytes, which is not sent again."""
        link = await self.get_link()
        may_go = self._uploads if kind == frames.PUT else self._at_once
        size = frames.CHUNK if kind == frames.PUT else _LARGE
        try:
            await may_go.wait()
            async with link.request(kind, body) as channel:
                answer = asyncio.ensure_future(self.answer(link, channel))
                try:
                    async for chunk in chunks:
                        for start in range(0, len(chunk), size):
                            await may_go.wait()
                            await channel.send(frames.DATA, chunk[start : start + size])
                        if answer.done():
                            break
                    else:
                        await may_go.wait()
                        await channel.send(frames.EOF)
                    async with asyncio.timeout(ANSWER_S):
                        return checked(expected, await answer)
                finally:
                    answer.cancel()
        except (LinkLost, TimeoutError) as exc:
            raise self._unanswered(exc) from exc

    @contextlib.contextmanager
    def uploads_wait(self) -> Iterator[None]:
        """Hold up what uploads send."""
        self._holding += 1
        self._uploads.clear()
        try:
            yield
        finally:
            self._holding -= 1
            if not self._holding:
                self._uploads.set()

    async def _attempt(
        self,
        kind: int,
        body: dict[str, Any],
        read: Callable[[Link, Channel], Awaitable[_T]],
        *,
        attempts: int = 2,
        long: bool = False,
    ) -> _T:
        within_s = None if long else ANSWER_S
        while True:
            link = await self.get_link()
            attempts -= 1
            try:
                async with asyncio.timeout(within_s), link.request(kind, body) as channel:
                    return await read(link, channel)
            except (LinkLost, TimeoutError) as exc:
                if attempts == 0:
                    raise self._unanswered(exc) from exc

    def _unanswered(self, error: LinkLost | TimeoutError) -> errors.RuntimeUnavailable:
        why = str(error) or f"silent for {ANSWER_S:g} s"
        return errors.RuntimeUnavailable(f"box {self._box.id} did not answer ({why}); try again")

    async def answer(self, link: Link, channel: Channel) -> frames.Frame:
        """The next frame, without a timeout as long as the box is alive: an engine does not always
        close the streams of a box that is gone. Raises LinkLost."""
        while True:
            try:
                return await channel.receive(silence_s=SILENCE_S)
            except TimeoutError:
                if await self._is_gone():
                    await link.close()

    async def _is_gone(self) -> bool:
        try:
            return not await self._box.is_alive()
        except errors.RuntimeUnavailable:
            return False  # Unknown: the answer may still come.

    async def _next(self, link: Link, channel: Channel) -> frames.Frame:
        """The next frame, without a timeout as long as the warden answers. Raises LinkLost."""
        while (frame := await self.frame(link, channel)) is None:
            pass
        return frame

    async def frame(self, link: Link, channel: Channel) -> frames.Frame | None:
        """The next frame; None if none came for SILENCE_S and the warden answers. Raises
        LinkLost."""
        try:
            return await channel.receive(silence_s=SILENCE_S)
        except TimeoutError:
            await self._check(link)
            return None

    async def _check(self, link: Link) -> None:
        """Close the link if the warden does not answer a ping."""
        try:
            async with asyncio.timeout(SILENCE_S), link.request(frames.PING, {}) as channel:
                await channel.receive()
        except (TimeoutError, LinkLost):
            await link.close()

    async def get_link(self) -> Link:
        if self._link is not None and self._link.lost is None:
            return self._link
        async with self._connecting:
            if self._link is None or self._link.lost is not None:
                await self._drop_link()
                self._require_open()
                self._link = await self._connect()
                if self._closed:  # Meanwhile: nobody else would close it.
                    await self._drop_link()
            self._require_open()
            return self._link

    def _require_open(self) -> None:
        if self._closed:
            raise errors.RuntimeUnavailable(
                f"box {self._box.id} is being ended, or left to another server; try again"
            )

    async def _drop_link(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def _connect(self) -> Link:
        """Open a stream and send HELLO; retried for CONNECT_S while the box is alive."""
        first_s, longest_s = PAUSE_S / 4, LONGEST_PAUSE_S / 2
        backoff = Backoff(first_s, longest_s, CONNECT_S, since=time.monotonic())
        while True:
            try:
                return await self._hello(await self._open_stream())
            except (LinkLost, TimeoutError) as exc:
                if not await self._box.is_alive():
                    raise errors.SessionLost(f"box {self._box.id} is gone") from exc
                pause_s = backoff.pause_s(time.monotonic())
                if pause_s is None:
                    raise errors.RuntimeUnavailable(
                        f"the warden of box {self._box.id} did not answer within {CONNECT_S:g} s"
                        f" ({exc or 'silent'}); try again"
                    ) from exc
            await asyncio.sleep(pause_s)

    async def _open_stream(self) -> ByteStream:
        try:
            return await self._box.open_stream()
        except errors.RuntimeUnavailable as exc:
            # The engine may refuse because the box is ending; _connect() checks that.
            raise LinkLost(exc.message) from exc

    async def _hello(self, stream: ByteStream) -> Link:
        link = Link(stream)
        # The first wardens know only `version`, and accept only their own.
        oldest, newest = frames.OLDEST_VERSION, frames.PROTOCOL_VERSION
        body: dict[str, Any] = {
            "version": oldest,
            "versions": [oldest, newest],
            "epoch": self._epoch,
        }
        if self._deadman_s is not None:
            body["deadman_s"] = self._deadman_s
        try:
            async with asyncio.timeout(CONNECT_S), link.request(frames.HELLO, body) as channel:
                about = checked(BoxAbout, await channel.receive())
                if not oldest <= about.version <= newest:
                    raise errors.RuntimeUnavailable(
                        f"the warden of box {self._box.id} speaks protocol version {about.version},"
                        f" this server {oldest} to {newest}; end the session to get a new box"
                    )
        except BaseException:
            await link.close()
            raise
        if self.about is not None and about.boot != self.about.boot:
            await link.close()
            raise errors.SessionLost(f"box {self._box.id} was restarted, and its state is gone")
        self.about = about
        return link
