"""The volumes of all tenants: making, listing, attaching and deleting them.

The kernel is the lock: a volume is in use exactly while its file has a loop device, which lives as
long as somebody has it open or mounted. So nothing has to be let go of after a crash, and no record
of ours can be wrong. What a device cannot tell, its label does: the thread that has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
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
from sandbox_server.runtime.loop_disk import LABEL_BYTES, LoopDisk, LoopUse
from sandbox_server.tasks import uninterrupted
from sandbox_server.volumes import disk

log = structlog.get_logger()

_SUFFIX = ".img"
RELEASE_S = 3.0
"""How long to wait for a volume that no session has any more: its box may still be ending."""
_LOOK_S = 0.05
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class StoredVolume:
    name: str
    size: int
    used: int
    made_at: float


class _InUse(Exception):
    def __init__(self, use: LoopUse) -> None:
        self.use = use


class Volumes:
    """In a folder with one file for each. Every method may raise RuntimeUnavailable, and
    InvalidRequest where there can be no volumes."""

    def __init__(self, folder: Path, *, size: int, quota: int, obstacle: str = "") -> None:
        """size: of a new one, unless its maker says otherwise. quota: bytes that the sizes of a
        tenant's may come to. obstacle: why there can be none."""
        self._folder = folder
        self._size = size
        self._obstacle = obstacle
        self.quota = quota

    def __repr__(self) -> str:
        return f"<Volumes in {self._folder}>"

    @property
    def about(self) -> str:
        """For people."""
        return f"none: {self._obstacle}" if self._obstacle else "a disk each, in the state folder"

    async def of(self, tenant: str) -> list[StoredVolume]:
        """All of a tenant, by name."""
        return await self._work(lambda: [*map(_stored, self._files(tenant))])

    async def create(self, tenant: str, name: str, size: int | None = None) -> StoredVolume:
        """Raises Conflict if there is one of this name, DiskFull."""

        def make() -> StoredVolume:
            with self._locked(tenant):
                path = self._path(tenant, name)
                if path.exists():
                    raise Conflict(f"there is a volume {name!r} already; delete it first")
                self._make(tenant, path, size)
                return _stored(path)

        return await self._work(make)

    async def delete(self, tenant: str, name: str) -> None:
        """Raises VolumeNotFound, Conflict while a box has it."""

        def delete() -> None:
            with self._locked(tenant):
                path = self._path(tenant, name)
                if not path.exists():
                    raise not_found(name)
                if (use := loop_disk.use_of(path)) is not None:
                    raise _InUse(use)
                path.unlink()

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
                # Closed by the stack: a caller that is cancelled never sees what this returns.
                opened = held.enter_context(self._attach(tenant, thread_id, mount))
                return BoxVolume(
                    name=mount.path.rpartition("/")[2],
                    device=opened.device,
                    size=self._path(tenant, mount.name).stat().st_size,
                    read_only=mount.mode == "ro",
                )

            yield [
                await self._once_free(mount.name, lambda mount=mount: attach(mount))  # type: ignore[misc]
                for mount in mounts
            ]

    def _attach(self, tenant: str, thread_id: str, mount: VolumeMount) -> LoopDisk:
        """A thread whose box is replaced may have a volume twice: it is one file system, and the
        box that goes does so once the new one is there."""
        path, label = self._path(tenant, mount.name), _label(thread_id)
        read_only = mount.mode == "ro"
        with self._locked(tenant):
            if not path.exists():
                if read_only:
                    raise not_found(mount.name)
                self._make(tenant, path, None)
            use = loop_disk.use_of(path)
            if use is None:
                disk.repair(path)
            elif use.read_only != read_only or not (read_only or use.label == label):
                raise _InUse(use)
            return loop_disk.attached(path, label=label, read_only=read_only)

    def _make(self, tenant: str, path: Path, size: int | None) -> None:
        size = size or self._size
        taken = sum(each.stat().st_size for each in self._files(tenant))
        if taken + size > self.quota:
            raise DiskFull(
                f"a volume of {size_text(size)} does not fit: volumes of {size_text(taken)} are"
                f" there, and SANDBOX_VOLUME_QUOTA of the server is {size_text(self.quota)};"
                " delete one, or ask for less",
                limit_bytes=self.quota,
            )
        disk.make(path, size)
        log.info("volume.made", tenant=tenant, volume=path.stem, size=size)

    async def _once_free(self, name: str, work: Callable[[], _Result]) -> _Result:
        deadline = time.monotonic() + RELEASE_S
        while True:
            try:
                return await self._work(work)
            except _InUse as exc:
                if time.monotonic() > deadline:
                    who = f"thread {exc.use.label.partition(' ')[2]!r} has it"
                    raise in_use(name, who, "ro" if exc.use.read_only else "rw") from None
            await asyncio.sleep(_LOOK_S)

    async def _work(self, work: Callable[[], _Result]) -> _Result:
        if self._obstacle:
            raise InvalidRequest(f"this server has no volumes: {self._obstacle}")
        try:
            return await uninterrupted(work)
        except OSError as exc:
            raise RuntimeUnavailable(f"the volumes cannot be used: {exc}") from exc

    @contextlib.contextmanager
    def _locked(self, tenant: str) -> Iterator[None]:
        """For a moment, so that of two who want a volume only one gets it."""
        folder = self._tenant_folder(tenant)
        private_folder(self._folder)
        private_folder(folder)
        with one_at_a_time(folder / "lock"):
            yield

    def _files(self, tenant: str) -> list[Path]:
        return sorted(self._tenant_folder(tenant).glob(f"*{_SUFFIX}"))

    def _path(self, tenant: str, name: str) -> Path:
        return self._tenant_folder(tenant) / f"{name}{_SUFFIX}"

    def _tenant_folder(self, tenant: str) -> Path:
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]


def in_use(name: str, who: str, mode: str) -> Conflict:
    return Conflict(
        f"volume {name!r} is in use: {who}, {mode}; one thread can have it rw, or any number ro:"
        " end that session, or wait for its end"
    )


def not_found(name: str) -> VolumeNotFound:
    """The same for a volume of another tenant as for none at all."""
    return VolumeNotFound(
        f"no volume {name!r}: it was deleted, or never was; list them to see which there are"
    )


def _stored(path: Path) -> StoredVolume:
    found = path.stat()
    return StoredVolume(
        name=path.stem,
        size=found.st_size,
        used=found.st_blocks * 512,
        made_at=disk.made_at(path),
    )


def _label(thread_id: str) -> str:
    """A thread in a label of a loop device. Not every name fits, so its digest comes first."""
    digest = hashlib.sha256(thread_id.encode()).hexdigest()[:16]
    return f"{digest} {thread_id}"[:LABEL_BYTES]
