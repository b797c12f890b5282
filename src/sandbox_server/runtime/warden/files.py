"""Files in and out of a box."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator

from sandbox_sdk.protocol import errors
from sandbox_warden import frames

from .answers import (
    DownloadAbout,
    FileEntry,
    Listing,
    Uploaded,
    checked,
    checked_entries,
    raise_answer,
    readable,
    reply_body,
)
from .line import ANSWER_S, Line
from .link import Channel, LinkLost

MAX_LIST_BYTES = 64 << 20


class Download:
    """A file on its way out: what it is, then its bytes. A folder comes as a tar."""

    def __init__(self, about: DownloadAbout, channel: Channel) -> None:
        self.about = about
        self._channel = channel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            kind, _, payload = await self._channel.receive(silence_s=ANSWER_S)
            if kind == frames.DATA:
                yield payload
            elif kind == frames.REPLY:
                return
            else:
                raise_answer(kind, payload)


class FileCalls(Line):
    """What can be done with files in a box."""

    async def put(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int = 0o644, limit: int = 1 << 62
    ) -> Uploaded:
        """Store a file. It appears under its name when it is whole, or not at all."""
        link = await self._get_link()
        body = {"path": path, "mode": mode, "limit": limit}
        try:
            async with link.request(frames.PUT, body) as channel:
                answer = asyncio.ensure_future(channel.receive())
                try:
                    async for chunk in chunks:
                        for start in range(0, len(chunk), frames.CHUNK):
                            await channel.send(frames.DATA, chunk[start : start + frames.CHUNK])
                        if answer.done():
                            break
                    else:
                        await channel.send(frames.EOF)
                    async with asyncio.timeout(ANSWER_S):
                        kind, _, payload = await answer
                finally:
                    answer.cancel()
                return checked(Uploaded, reply_body(kind, payload))
        except (LinkLost, TimeoutError) as exc:
            raise errors.RuntimeUnavailable("the upload was cut off; try again") from exc

    @contextlib.asynccontextmanager
    async def get(self, path: str, *, digest: bool = False) -> AsyncIterator[Download]:
        """Read a file or a folder. With digest, its sha256 is known before the first byte."""
        link = await self._get_link()
        try:
            async with link.request(frames.GET, {"path": path, "digest": digest}) as channel:
                kind, _, payload = await channel.receive(silence_s=ANSWER_S)
                if kind != frames.STARTED:
                    raise_answer(kind, payload)
                yield Download(checked(DownloadAbout, frames.decode_json(payload)), channel)
        except (LinkLost, TimeoutError) as exc:
            raise errors.RuntimeUnavailable("the download was cut off; try again") from exc

    async def list(self, path: str, *, recursive: bool = False, limit: int = 1000) -> Listing:
        link = await self._get_link()
        body = {"path": path, "recursive": recursive, "limit": limit}
        entries: list[FileEntry] = []
        batch = bytearray()
        try:
            async with asyncio.timeout(ANSWER_S), link.request(frames.LIST, body) as channel:
                while True:
                    kind, _, payload = await channel.receive()
                    if kind == frames.DATA and len(batch) < MAX_LIST_BYTES:
                        batch += payload
                    elif kind == frames.EOF:
                        entries += checked_entries(bytes(batch))
                        batch.clear()
                    else:
                        truncated = bool(reply_body(kind, payload).get("truncated"))
                        return Listing(entries[:limit], truncated)
        except (LinkLost, TimeoutError) as exc:
            raise errors.RuntimeUnavailable("the box did not answer; try again") from exc

    async def stat(self, path: str) -> FileEntry:
        return checked(FileEntry, readable(await self._ask(frames.STAT, {"path": path})))
