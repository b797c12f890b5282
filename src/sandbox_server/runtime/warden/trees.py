"""All files of a box, out and in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence

from sandbox_server.runtime.agent import PackedTree, TreeAbout, TreeCounts, TreeStarted
from sandbox_warden import frames

from .answers import checked, invalid, raise_error
from .link import Channel, Link, LinkLost
from .reconnecting_link import ReconnectingLink

MAX_SEGMENT = 8 << 20
"""More than a warden sends: 4 MiB, and a file that begins before."""


class _WardenTree(PackedTree):
    def __init__(
        self, owner: TreeCalls, link: Link, channel: Channel, running: list[str], *, still: bool
    ) -> None:
        self.running = running
        self._still = still
        self.about: TreeAbout | None = None
        self._owner = owner
        self._link = link
        self._channel = channel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._still:  # The warden waits for this, so that nothing is written until now.
            await self._channel.send(frames.EOF)
        pieces: list[bytes] = []
        size = 0
        while True:
            frame = await self._owner.next_frame(self._link, self._channel)
            kind, _, payload = frame
            if kind == frames.DATA:
                pieces.append(payload)
                size += len(payload)
                if size > MAX_SEGMENT:
                    raise invalid(kind, f"a segment of more than {MAX_SEGMENT} bytes")
            elif kind == frames.EOF:
                if not size:
                    raise invalid(kind, "an empty segment")
                yield b"".join(pieces)
                pieces, size = [], 0
            elif kind == frames.REPLY:
                self.about = checked(TreeAbout, frame)
                return
            else:
                raise_error(frame, expected=frames.DATA)


class TreeCalls(ReconnectingLink):
    """The methods of BoxAgent about all files."""

    @contextlib.asynccontextmanager
    async def pack(
        self, roots: Sequence[str], *, pause_s: float, still: bool = False
    ) -> AsyncIterator[PackedTree]:
        link = await self.get_link()
        body = {"roots": list(roots), "pause_s": pause_s, "still": still}
        uploads = self.uploads_wait() if still else contextlib.nullcontext()
        try:
            # What was uploaded before is written by the time the warden reads this request.
            with uploads:
                async with link.request(frames.PACK, body) as channel:
                    started = await self._answer(link, channel)
                    running = checked(TreeStarted, started, kind=frames.STARTED).running
                    yield _WardenTree(self, link, channel, running, still=still)
        except (LinkLost, TimeoutError) as exc:
            raise self._unanswered(exc) from exc

    async def unpack(self, segments: AsyncIterable[bytes]) -> TreeCounts:
        return await self._send(TreeCounts, frames.UNPACK, {}, segments)

    async def next_frame(self, link: Link, channel: Channel) -> frames.Frame:
        return await self._answer(link, channel)
