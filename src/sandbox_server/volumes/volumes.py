"""The volumes of all tenants: making, listing, attaching and deleting them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from sandbox_sdk.protocol.errors import (
    Conflict,
    DiskFull,
    InvalidRequest,
    RuntimeUnavailable,
    VolumeNotFound,
    size_text,
)
from sandbox_sdk.protocol.models import VolumeMount
from sandbox_server.private import one_at_a_time, private_folder
from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.base import BoxVolume
from sandbox_server.tasks import uninterrupted
from sandbox_server.volumes.binding import BindFolders
from sandbox_server.volumes.disks import VolumeDisks
from sandbox_server.volumes.folders import VolumeFolders
from sandbox_server.volumes.store import InUse, StoredVolume, VolumeStore

log = structlog.get_logger()

RELEASE_S = 3.0
"""How long to wait for a volume that no session has any more: its box may still be ending."""
_LOOK_S = 0.05
_Result = TypeVar("_Result")


class Volumes:
    """Every method may raise RuntimeUnavailable, and InvalidRequest where there can be none."""

    def __init__(
        self,
        folder: Path,
        *,
        size: int,
        quota: int,
        store: VolumeStore,
        obstacle: str = "",
        binds: BindFolders | None = None,
    ) -> None:
        """size: of a new one, unless its maker says otherwise. quota: bytes that the sizes of a
        tenant's may come to. obstacle: why there can be none. binds: which folders
        of the machine boxes may have besides."""
        self._binds = binds or BindFolders()
        self._folder = folder
        self._size = size
        self._store = store
        self._obstacle = obstacle
        self.quota = quota

    @classmethod
    def open(
        cls, folder: Path, *, size: int, quota: int, binds: BindFolders | None = None
    ) -> Volumes:
        """In the way that this machine can offer. Blocks for some milliseconds."""
        private_folder(folder.parent)
        store: VolumeStore = VolumeFolders()
        obstacle = ""
        if os.geteuid() == 0:
            store, obstacle = VolumeDisks(), loop_disk.obstacle(folder.parent)
        return cls(folder, size=size, quota=quota, store=store, obstacle=obstacle, binds=binds)

    def __repr__(self) -> str:
        return f"<Volumes in {self._folder}>"

    @property
    def about(self) -> str:
        """For people."""
        return f"none: {self._obstacle}" if self._obstacle else self._store.about

    async def of(self, tenant: str) -> list[StoredVolume]:
        """All of a tenant, by name."""

        def look() -> list[StoredVolume]:
            with self._locked(tenant) as folder:
                return [self._store.look(folder, name) for name in self._store.names(folder)]

        return await self._work(look)

    async def create(self, tenant: str, name: str, size: int | None = None) -> StoredVolume:
        """Raises Conflict if there is one of this name, DiskFull."""

        def make() -> StoredVolume:
            with self._locked(tenant) as folder:
                if name in self._store.names(folder):
                    raise Conflict(f"there is a volume {name!r} already; delete it first")
                self._make(folder, name, size)
                return self._store.look(folder, name)

        made = await self._work(make)
        log.info("volume.made", tenant=tenant, volume=name, size=made.size)
        return made

    async def delete(self, tenant: str, name: str) -> None:
        """Raises VolumeNotFound, Conflict while a box has it."""

        def delete() -> None:
            with self._locked(tenant) as folder:
                if name not in self._store.names(folder):
                    raise not_found(name)
                self._store.remove(folder, name)

        await self._once_free(name, delete)
        log.info("volume.deleted", tenant=tenant, volume=name)

    @contextlib.asynccontextmanager
    async def attached(
        self, tenant: str, thread_id: str, mounts: Sequence[VolumeMount]
    ) -> AsyncIterator[list[BoxVolume]]:
        """What a new box of a thread can mount, held until then. A volume that is to be written to
        is made if there is none. Raises Conflict, VolumeNotFound, DiskFull."""
        with contextlib.ExitStack() as held:

            def attach(mount: VolumeMount) -> BoxVolume:
                if mount.name is None:
                    return self._binds.attach(mount)
                with self._locked(tenant) as folder:
                    if mount.name not in self._store.names(folder):
                        if mount.mode == "ro":
                            raise not_found(mount.name)
                        self._make(folder, mount.name, None)
                    # Held here, not by the caller: one that is cancelled never sees the result.
                    return self._store.attach(folder, mount, thread_id, held)

            yield [
                await self._once_free(mount.name or "", lambda mount=mount: attach(mount))  # type: ignore[misc]
                for mount in mounts
            ]

    def _make(self, folder: Path, name: str, size: int | None) -> None:
        size = size or self._size
        there = [self._store.look(folder, each) for each in self._store.names(folder)]
        taken = sum(each.size for each in there)
        if taken + size > self.quota:
            raise DiskFull(
                f"a volume of {size_text(size)} does not fit: volumes of {size_text(taken)} are"
                f" there, and SANDBOX_VOLUME_QUOTA of the server is {size_text(self.quota)};"
                " delete one, or ask for less",
                limit_bytes=self.quota,
            )
        self._store.make(folder, name, size)

    async def _once_free(self, name: str, work: Callable[[], _Result]) -> _Result:
        deadline = time.monotonic() + RELEASE_S
        while True:
            try:
                return await self._work(work)
            except InUse as exc:
                if time.monotonic() > deadline:
                    # Of those that read, the disk knows the first, which may have ended.
                    thread_id = exc.thread_id if exc.mode == "rw" else None
                    raise in_use(name, thread_id, exc.mode) from None
            await asyncio.sleep(_LOOK_S)

    async def _work(self, work: Callable[[], _Result]) -> _Result:
        if self._obstacle:
            raise InvalidRequest(f"this server has no volumes: {self._obstacle}")
        try:
            return await uninterrupted(work)
        except OSError as exc:
            raise RuntimeUnavailable(f"the volumes cannot be used: {exc}") from exc

    @contextlib.contextmanager
    def _locked(self, tenant: str) -> Iterator[Path]:
        """The folder of a tenant, for a moment nobody else's: of two who want a volume only one
        gets it."""
        folder = self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]
        private_folder(self._folder)
        private_folder(folder)
        with one_at_a_time(folder.with_suffix(".lock")):
            yield folder


def in_use(name: str, thread_id: str | None, mode: str) -> Conflict:
    whose = "another thread has" if thread_id is None else f"thread {thread_id!r} has"
    return Conflict(
        f"volume {name!r} is in use: {whose} it, {mode}; one thread can have it rw, or any number"
        " ro: end that session, or wait for its end"
    )


def not_found(name: str) -> VolumeNotFound:
    """The same for a volume of another tenant as for none at all."""
    return VolumeNotFound(
        f"no volume {name!r}: it was deleted, or never was; list them to see which there are"
    )
