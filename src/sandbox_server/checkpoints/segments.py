"""Segments of files in the store: compressed, each kept once, and checked when they are read."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from sandbox_sdk.protocol.errors import DiskFull, NotFound
from sandbox_server.checkpoints.manifest import Segment, damaged, folder_of
from sandbox_server.runtime.warden.files import MAX_SEGMENT
from sandbox_server.storage.objects import ObjectStore

AT_ONCE = 4
"""Segments in memory: one is compressed or sent while the next is read."""
_LEVEL = 1
"""Fast: text shrinks to a third, and what does not shrink costs next to nothing."""


@dataclass(frozen=True)
class Kept:
    segments: list[Segment]
    added: int
    """Bytes that were not there before."""


class Segments:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def keep(self, tenant: str, tree: AsyncIterable[bytes], *, most: int) -> Kept:
        """Store what is not there yet. Raises what reading the tree raises, and DiskFull if it
        takes more bytes than `most`."""
        waiting: deque[asyncio.Task[tuple[Segment, bool]]] = deque()
        done: list[tuple[Segment, bool]] = []
        try:
            async for data in tree:
                if len(waiting) >= AT_ONCE:
                    done.append(await waiting.popleft())
                    most -= done[-1][0].stored
                    if most < 0:
                        raise DiskFull("the files take more room than all checkpoints may")
                waiting.append(asyncio.create_task(self._keep(tenant, data)))
            while waiting:
                done.append(await waiting.popleft())
        finally:
            await _cancel(waiting)
        added = {segment: None for segment, is_new in done if is_new}
        return Kept([segment for segment, _ in done], sum(segment.stored for segment in added))

    async def read(
        self, tenant: str, segments: Sequence[Segment], *, checkpoint_id: str
    ) -> AsyncIterator[bytes]:
        """Raises CheckpointDamaged."""
        waiting: deque[asyncio.Task[bytes]] = deque()
        try:
            for segment in segments:
                if len(waiting) >= AT_ONCE:
                    yield await waiting.popleft()
                reading = self._read(tenant, segment, checkpoint_id)
                waiting.append(asyncio.create_task(reading))
            while waiting:
                yield await waiting.popleft()
        finally:
            await _cancel(waiting)

    async def _keep(self, tenant: str, data: bytes) -> tuple[Segment, bool]:
        """Also whether it was not there before."""
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        name = segment_name(tenant, digest)
        found = await self._store.look(name)
        if found is not None and found.age_s < self._store.refresh_s:
            return Segment(digest, len(data), found.size), False
        packed = await asyncio.to_thread(zstandard.ZstdCompressor(level=_LEVEL).compress, data)
        await self._store.put(name, packed)
        return Segment(digest, len(data), len(packed)), found is None

    async def _read(self, tenant: str, segment: Segment, checkpoint_id: str) -> bytes:
        try:
            packed = await self._store.get(segment_name(tenant, segment.digest))
        except NotFound:
            raise damaged(checkpoint_id, "a part of it is missing in the store") from None
        try:
            data, digest = await asyncio.to_thread(_unpacked, packed)
        except (zstandard.ZstdError, MemoryError) as exc:
            raise damaged(checkpoint_id, "a part of it is damaged in the store") from exc
        if digest != segment.digest:
            raise damaged(checkpoint_id, "a part of it was changed in the store")
        return data


def segment_name(tenant: str, digest: str) -> str:
    return f"{folder_of(tenant)}/segments/{digest[:2]}/{digest}"


def _unpacked(packed: bytes) -> tuple[bytes, str]:
    data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_SEGMENT)
    return data, hashlib.sha256(data).hexdigest()


async def _cancel(waiting: Iterable[asyncio.Task[Any]]) -> None:
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
