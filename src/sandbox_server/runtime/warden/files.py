"""Files in and out of a box, one by one and all together."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Any

from sandbox_sdk.protocol import errors
from sandbox_server.runtime import agent
from sandbox_warden import frames

from .answers import checked, checked_payload, invalid, raise_error
from .link import Channel, Link, LinkLost
from .reconnecting_link import ANSWER_S, ReconnectingLink

MAX_PATH = 4096
MAX_BATCH_BYTES = 1 << 20
MAX_LIST_BYTES = 64 << 20
"""More than a warden sends: 8 MiB of names and paths, up to six times as long when escaped, and 150
bytes for each of 100,000 entries."""
LIST_S = 60.0
"""How long a whole listing may take."""
MAX_SEGMENT = 8 << 20
"""More than a warden sends: 4 MiB, and a file that begins before."""
_MAX_EMPTY = 1_000_000


class WardenDownload(agent.Download):
    def __init__(self, about: agent.DownloadAbout, channel: Channel) -> None:
        self.about = about
        self._channel = channel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive. The last chunk is held back until size and digest match
        `about`: a file that changed meanwhile never looks complete. Raises RuntimeUnavailable."""
        size, digest, held = 0, hashlib.sha256(), b""
        async for data in self._data():
            if held:
                yield held
            size, held = size + len(data), data
            if self.about.size is not None and size > self.about.size:
                raise invalid(frames.DATA, f"{size} bytes, but the file has {self.about.size}")
            if self.about.sha256 is not None:
                digest.update(data)
        if self.about.size is not None and size < self.about.size:
            raise invalid(frames.REPLY, f"end of file after {size} of {self.about.size} bytes")
        if self.about.sha256 not in (None, digest.hexdigest()):
            raise errors.RuntimeUnavailable(
                f"{self.about.path} changed while it was read; try again"
            )
        if held:
            yield held

    async def _data(self) -> AsyncIterator[bytes]:
        empty = 0
        while True:
            frame = await self._channel.receive(silence_s=ANSWER_S)
            kind, _, payload = frame
            if kind == frames.REPLY:
                return
            if kind != frames.DATA:
                raise_error(frame, expected=frames.DATA)
            if payload:
                yield payload
                continue
            empty += 1
            if empty > _MAX_EMPTY:
                raise invalid(kind, f"{empty} frames without data")


class _WardenTree(agent.PackedTree):
    def __init__(
        self,
        box: ReconnectingLink,
        link: Link,
        channel: Channel,
        running: list[str],
        *,
        still: bool,
    ) -> None:
        self.running = running
        self.about: agent.TreeAbout | None = None
        self._box, self._link = box, link
        self._channel = channel
        self._still = still

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._still:  # The warden waits for this, so that nothing is written until now.
            await self._channel.send(frames.EOF)
        pieces: list[bytes] = []
        size = 0
        while True:
            frame = await self._box.answer(self._link, self._channel)
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
                self.about = checked(agent.TreeAbout, frame)
                return
            else:
                raise_error(frame, expected=frames.DATA)


class FileCalls(ReconnectingLink):
    """The methods of BoxAgent about files."""

    async def put(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        limit: int = 1 << 62,
        metadata: Mapping[str, str] | None = None,
    ) -> agent.Uploaded:
        body: dict[str, Any] = {"path": _bounded(path), "mode": mode, "limit": limit}
        if metadata:
            await self._require("metadata", "metadata")
            body["metadata"] = dict(metadata)
        return await self._send(agent.Uploaded, frames.PUT, body, chunks)

    @contextlib.asynccontextmanager
    async def get(self, path: str, *, digest: bool = False) -> AsyncIterator[agent.Download]:
        body = {"path": _bounded(path), "digest": digest}
        link = await self.get_link()
        try:
            async with link.request(frames.GET, body) as channel:
                async with asyncio.timeout(ANSWER_S):
                    started = await self.answer(link, channel)
                about = checked(agent.DownloadAbout, started, kind=frames.STARTED)
                yield WardenDownload(about, channel)
        except (LinkLost, TimeoutError) as exc:
            raise self._unanswered(exc) from exc

    async def batches(
        self, path: str, *, recursive: bool = False, depth: int | None = None, limit: int = 1000
    ) -> AsyncGenerator[agent.Batch | agent.ListEnd]:
        body = {"path": _bounded(path), "recursive": recursive, "limit": limit}
        if depth is not None:
            await self._require("files", "depth")
            body["depth"] = depth
        async with contextlib.aclosing(self._batches(frames.LIST, body)) as batches:
            async for batch in batches:
                yield batch

    async def changes(
        self, command_id: str | None, *, marked_only: bool, age_s: float | None = None, limit: int
    ) -> agent.Listing:
        body = {
            "command_id": command_id,
            "marked_only": marked_only,
            "age_s": age_s,
            "limit": limit,
        }
        return await agent.whole(self._batches(frames.CHANGES, body))

    async def _batches(
        self, kind: int, body: dict[str, Any]
    ) -> AsyncGenerator[agent.Batch | agent.ListEnd]:
        link = await self.get_link()
        reader = _BatchReader(int(body["limit"]))
        try:
            async with link.request(kind, body) as channel:
                while isinstance(batch := await reader.next(channel), list):
                    yield batch
                yield batch
        except (LinkLost, TimeoutError) as exc:
            raise self._unanswered(exc) from exc

    async def rename(self, path: str, to: str, *, replace: bool = False) -> agent.FileEntry:
        body = {"path": _bounded(path), "to": _bounded(to), "replace": replace}
        return await self._ask(agent.FileEntry, frames.RENAME, body, repeatable=False, long=True)

    async def stat(self, path: str, *, follow: bool = False) -> agent.FileEntry:
        body: dict[str, Any] = {"path": _bounded(path)}
        if follow:
            await self._require("files", "follow")
            body["follow"] = True
        return await self._ask(agent.FileEntry, frames.STAT, body)

    async def mkdir(self, path: str) -> agent.FolderMade:
        await self._require("files", "mkdir")
        return await self._ask(
            agent.FolderMade, frames.MKDIR, {"path": _bounded(path)}, repeatable=False
        )

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        await self._require("files", "remove")
        body = {"path": _bounded(path), "recursive": recursive}
        await self._ask(agent.AgentAnswer, frames.REMOVE, body, repeatable=False, long=True)

    async def watch(self, path: str, *, recursive: bool = False) -> agent.WatchStarted:
        await self._require("watch", "watch")
        body = {"op": "start", "path": _bounded(path), "recursive": recursive}
        return await self._ask(agent.WatchStarted, frames.WATCH, body, long=True)

    async def watched(self, watch_id: str, *, after: int, wait_s: float) -> agent.FileChanges:
        await self._require("watch", "watch")
        body = {"op": "read", "watch_id": watch_id, "after": after, "wait": wait_s}
        return await self._ask(agent.FileChanges, frames.WATCH, body, long=True)

    async def unwatch(self, watch_id: str) -> bool:
        await self._require("watch", "watch")
        body = {"op": "end", "watch_id": watch_id}
        return (await self._ask(agent.WatchEnded, frames.WATCH, body)).ended

    async def _require(self, ability: agent.Ability, purpose: str) -> None:
        """Raises InvalidRequest if the warden is of an earlier version."""
        await self.get_link()
        self.require(ability, purpose)

    @contextlib.asynccontextmanager
    async def pack(
        self, roots: Sequence[str], *, pause_s: float, still: bool = False
    ) -> AsyncIterator[agent.PackedTree]:
        link = await self.get_link()
        body = {"roots": list(roots), "pause_s": pause_s, "still": still}
        uploads = self.uploads_wait() if still else contextlib.nullcontext()
        try:
            # What was uploaded before is written by the time the warden reads this request.
            with uploads:
                async with link.request(frames.PACK, body) as channel:
                    started = await self.answer(link, channel)
                    running = checked(agent.TreeStarted, started, kind=frames.STARTED).running
                    yield _WardenTree(self, link, channel, running, still=still)
        except (LinkLost, TimeoutError) as exc:
            raise self._unanswered(exc) from exc

    async def unpack(self, segments: AsyncIterable[bytes]) -> agent.TreeCounts:
        return await self._send(agent.TreeCounts, frames.UNPACK, {}, segments)


class _BatchReader:
    """Reads the batches of a listing and enforces its limits: entries, bytes and time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._room = MAX_LIST_BYTES
        self._deadline = time.monotonic() + LIST_S

    async def next(self, channel: Channel) -> agent.Batch | agent.ListEnd:
        """Raises RuntimeUnavailable, LinkLost and TimeoutError."""
        batch = bytearray()
        while True:
            left_s = self._deadline - time.monotonic()
            frame = await channel.receive(silence_s=max(left_s, 0.0))
            kind, _, payload = frame
            if kind == frames.EOF:
                return await self._entries(bytes(batch))
            if kind != frames.DATA:
                return checked(agent.ListEnd, frame)
            batch += payload
            self._room -= len(payload) or 64
            if len(batch) > MAX_BATCH_BYTES or self._room < 0:
                raise invalid(
                    kind,
                    f"a listing of more than {MAX_BATCH_BYTES} bytes in a batch or"
                    f" {MAX_LIST_BYTES} in all",
                )

    async def _entries(self, batch: bytes) -> agent.Batch:
        entries = checked_payload(list[agent.FileEntry], frames.DATA, batch)
        self._limit -= len(entries)
        if not entries or self._limit < 0:
            raise invalid(frames.DATA, "a batch without entries, or more entries than requested")
        await asyncio.sleep(0)  # Parsing batch after batch would block the event loop.
        return entries


def _bounded(path: str) -> str:
    """Raises InvalidPath."""
    if len(path) > MAX_PATH:
        raise errors.InvalidPath(
            f"path {path[:100]!r}… is too long: {len(path)} characters, at most {MAX_PATH} bytes"
        )
    return path
