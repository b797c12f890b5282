"""Stores: named byte streams, where the name of a stream is its sha256."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox_sdk.protocol.errors import DiskFull, NotFound, RuntimeUnavailable
from sandbox_server.private import one_at_a_time, private_folder

FRESH_S = 60.0
"""How long after it was put a stream is not deleted: whoever put it is about to refer to it."""
_CHUNK = 256 * 1024
_LEFT_AFTER_S = 3600.0
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Stored:
    digest: str
    size: int


class FolderStore:
    """A folder that only the server's user can read. Processes may share it. Every method may raise
    RuntimeUnavailable."""

    def __init__(self, folder: Path, *, fresh_s: float = FRESH_S) -> None:
        """Raises OSError."""
        private_folder(folder)
        self._folder = folder
        self._fresh_s = fresh_s
        remove_leftovers(folder.glob("new-*"))

    def __repr__(self) -> str:
        return f"<FolderStore {self._folder}>"

    async def put(self, chunks: AsyncIterable[bytes]) -> Stored:
        """Store a stream. It is there as a whole or, if reading it fails, not at all. Raises
        DiskFull."""
        new = self._folder / f"new-{uuid.uuid4().hex}"
        digest, size = hashlib.sha256(), 0
        try:
            with _translated():
                fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                async for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    with _translated():
                        await asyncio.to_thread(write_all, fd, chunk)
            finally:
                os.close(fd)
            with _translated():
                await asyncio.to_thread(self._publish, new, digest.hexdigest())
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
        return Stored(digest.hexdigest(), size)

    @contextlib.asynccontextmanager
    async def open(self, digest: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read a stream. Raises NotFound."""
        try:
            file = await asyncio.to_thread(self._path(digest).open, "rb")
        except OSError as exc:
            raise _missing(digest) from exc

        async def chunks() -> AsyncIterator[bytes]:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk

        with file:
            yield chunks()

    async def delete(self, digest: str) -> bool:
        """Whether it is gone. One that was put within FRESH_S stays: try again later."""
        with _translated():
            return await asyncio.to_thread(self._delete, digest)

    def _publish(self, new: Path, digest: str) -> None:
        path = self._path(digest)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # Always the new file, so that its time says when it was last put.
        with self._locked():
            new.replace(path)

    def _delete(self, digest: str) -> bool:
        path = self._path(digest)
        with self._locked():
            try:
                if time.time() - path.stat().st_mtime < self._fresh_s:
                    return False
                path.unlink()
            except FileNotFoundError:
                return True
        return True

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise _missing(digest)
        return self._folder / digest[:2] / digest

    def _locked(self) -> AbstractContextManager[None]:
        """So that no stream is deleted that was put again since its time was looked at."""
        return one_at_a_time(self._folder / "lock")


def remove_leftovers(new: Iterable[Path]) -> None:
    """Remove what a killed process was writing."""
    for left in new:
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_AFTER_S:
                left.unlink()


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _missing(digest: str) -> NotFound:
    return NotFound(f"the store has nothing under {digest[:64]!r}")


@contextlib.contextmanager
def translated(message: str, *, missing: bool = False) -> Iterator[None]:
    """Translate errors of a disk. missing: leave a FileNotFoundError as it is."""
    try:
        yield
    except OSError as exc:
        if missing and isinstance(exc, FileNotFoundError):
            raise
        why = exc.strerror or type(exc).__name__
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (DiskFull if full else RuntimeUnavailable)(f"{message}: {why}") from exc


_translated = partial(translated, "the server's store cannot be written")
