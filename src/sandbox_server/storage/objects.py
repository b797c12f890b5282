"""Object stores: bytes under names, on a disk of this machine or with an S3 service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox_sdk.protocol.errors import NotFound
from sandbox_server.private import private_folder
from sandbox_server.storage.store import remove_leftovers, translated, write_all

_translated = partial(translated, "the store of checkpoints cannot be used", missing=True)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*")


@dataclass(frozen=True)
class StoredObject:
    name: str
    size: int
    age_s: float
    """Since it was put, or used again."""


class ObjectStore(ABC):
    """Names are lower-case words with slashes. Every method may raise RuntimeUnavailable."""

    refresh_s: float
    """How old an object may be before it has to be put again by whoever uses it once more."""

    @abstractmethod
    async def put(self, name: str, data: bytes) -> None:
        """Store an object, or replace it: as a whole or not at all. Raises DiskFull."""

    @abstractmethod
    async def get(self, name: str) -> bytes:
        """Raises NotFound."""

    @abstractmethod
    async def look(self, name: str) -> StoredObject | None:
        """Without reading it; None if there is no such object."""

    @abstractmethod
    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """The objects whose names begin with a prefix, which is empty or ends with a slash."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Nothing happens if there is no such object."""


class FolderObjects(ObjectStore):
    """A folder that only the server's user can read. Processes may share it."""

    refresh_s = 600.0

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        private_folder(folder)
        self._folder = folder
        self._new = folder / "new"
        self._new.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(self._new.iterdir())

    def __repr__(self) -> str:
        return f"<FolderObjects {self._folder}>"

    async def put(self, name: str, data: bytes) -> None:
        with _translated():
            await asyncio.to_thread(self._put, self._path(name), data)

    async def get(self, name: str) -> bytes:
        try:
            with _translated():
                return await asyncio.to_thread(self._path(name).read_bytes)
        except FileNotFoundError:
            raise NotFound(f"the store has no object {name}") from None

    async def look(self, name: str) -> StoredObject | None:
        try:
            with _translated():
                status = self._path(name).stat()
        except FileNotFoundError:
            return None
        return StoredObject(name, status.st_size, max(time.time() - status.st_mtime, 0.0))

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        with _translated():
            folder = self._path(prefix.rstrip("/")) if prefix else self._folder
            found = await asyncio.to_thread(lambda: [*self._below(folder)])
        for each in found:
            yield each

    async def delete(self, name: str) -> None:
        with _translated():
            await asyncio.to_thread(self._path(name).unlink, missing_ok=True)

    def _put(self, path: Path, data: bytes) -> None:
        new = self._new / uuid.uuid4().hex
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, data)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    def _below(self, folder: Path) -> Iterator[StoredObject]:
        now = time.time()
        for path in sorted(folder.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.is_file():
                    name = str(path.relative_to(self._folder))
                    yield StoredObject(name, status.st_size, max(now - status.st_mtime, 0.0))

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise NotFound(f"{name[:200]!r} is not the name of an object")
        return self._folder / name
