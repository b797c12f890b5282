"""Checkpoints of all tenants: taking, finding, reading and deleting them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import CheckpointDamaged, DiskFull, SandboxError, size_text
from sandbox_sdk.protocol.models import WORKSPACE, LeftOutFile
from sandbox_server.checkpoints.images import Images
from sandbox_server.checkpoints.manifest import Catalogue, DiskCopy, Manifest, damaged, new_id
from sandbox_server.checkpoints.segments import Segments, segment_name
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box, DiskImage
from sandbox_server.storage.objects import ObjectStore

log = structlog.get_logger()

PLACES = (WORKSPACE, "/home/sandboxuser", "/tmp")
PAUSE_S = 60.0
"""How long the processes of a box may be paused."""
AUTOMATIC = 10
"""Automatic checkpoints of one thread; the oldest goes when there is another."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a checkpoint is taken of."""

    tenant: str
    thread_id: str
    session_id: str
    generation: int
    environment: str | None
    asked: Mapping[str, Any]
    parent: str | None
    cwd: str | None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where its files come from."""

    box: Box
    agent: BoxAgent
    provider: str
    disk_bytes: int


class Checkpoints:
    """Every method may raise RuntimeUnavailable."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        quota: int,
        retention_s: float,
        images: Images | None = None,
        about: str = "",
    ) -> None:
        """quota: bytes of one tenant. retention_s: of automatic ones. images: where the disks of
        boxes can be copied at no cost. about: all of that, for people."""
        self.about = about
        self._store = store
        self._catalogue = Catalogue(store)
        self._segments = Segments(store)
        self._images = images
        self._quota = quota
        self.retention_s = retention_s

    def __repr__(self) -> str:
        return f"<Checkpoints in {self._store!r}>"

    async def take(
        self,
        source: Source,
        of: Subject,
        *,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        automatic: bool = False,
        tmp: bool = True,
        checkpoint_id: str | None = None,
    ) -> Manifest:
        """Copy the files of a box. Raises Conflict, DiskFull if the quota is used up, SessionLost.
        If it raises, there is no checkpoint."""
        manifest = await self._copy(
            source, of, checkpoint_id or new_id(), PLACES if tmp else PLACES[:-1], name=name,
            metadata=dict(metadata or {}), automatic=automatic,
        )  # fmt: skip
        try:
            await self._make_room(manifest)
            await self._catalogue.add(manifest)
        except BaseException:
            await self._drop_image(of.tenant, manifest.disk)
            raise
        log.info("checkpoint.taken", thread=of.thread_id, checkpoint=manifest.checkpoint_id,
                 size=manifest.size, added=manifest.added, paused_ms=manifest.paused_ms,
                 automatic=automatic)  # fmt: skip
        return manifest

    async def _copy(
        self, source: Source, of: Subject, checkpoint_id: str, places: Sequence[str], **fields: Any
    ) -> Manifest:
        source.agent.require("tree", "a checkpoint")
        images = self._images if source.box.disk_owner is not None else None
        roots = [place for place in places if images is None or place != WORKSPACE]
        disk = None
        try:
            async with source.agent.pack(roots, pause_s=PAUSE_S, still=images is not None) as tree:
                if images is not None:
                    disk = await images.take(
                        source.box,
                        of.tenant,
                        checkpoint_id,
                        provider=source.provider,
                        size=source.disk_bytes,
                    )
                kept = await self._segments.keep(of.tenant, tree, most=self._quota)
        except BaseException:
            await self._drop_image(of.tenant, disk)
            raise
        assert tree.about is not None
        about = tree.about
        return Manifest(
            checkpoint_id=checkpoint_id,
            **vars(of),
            **fields,
            created_at=time.time(),
            files=about.files + (0 if disk is None else disk.inodes),
            folders=about.folders,
            size=about.size + (0 if disk is None else disk.used),
            added=kept.added,
            running=list(tree.running),
            left_out=[LeftOutFile(path=each.path, why=each.why) for each in about.left_out],
            left_out_more=about.left_out_more,
            paused_ms=about.paused_ms,
            segments=kept.segments,
            disk=disk,
        )

    async def get(self, tenant: str, checkpoint_id: str) -> Manifest:
        """Raises CheckpointNotFound, CheckpointDamaged."""
        return await self._catalogue.get(tenant, checkpoint_id)

    async def of(self, tenant: str) -> list[Manifest]:
        """All of a tenant, newest first."""
        return await self._catalogue.of(tenant)

    async def stored(self, tenant: str) -> int:
        """Bytes that those of a tenant take."""
        return _stored(await self.of(tenant))

    def read(self, manifest: Manifest) -> AsyncIterator[bytes]:
        """Its segments. Raises CheckpointDamaged."""
        return self._segments.read(
            manifest.tenant, manifest.segments, checkpoint_id=manifest.checkpoint_id
        )

    async def delete(self, tenant: str, checkpoint_id: str) -> None:
        """Raises CheckpointNotFound."""
        disk = None
        with contextlib.suppress(CheckpointDamaged):
            disk = (await self._catalogue.get(tenant, checkpoint_id)).disk
        await self._catalogue.delete(tenant, checkpoint_id)
        await self._drop_image(tenant, disk)

    def image(self, manifest: Manifest) -> DiskImage | None:
        """The disk that a box begins with; None if all files are in the segments. Raises
        CheckpointDamaged."""
        if manifest.disk is None:
            return None
        if self._images is None:
            raise damaged(
                manifest.checkpoint_id, "it has a copy of a disk, and this server has no disk pool"
            )
        return self._images.image(manifest)

    async def _drop_image(self, tenant: str, disk: DiskCopy | None) -> None:
        if self._images is not None and disk is not None:
            await self._images.delete(tenant, disk)

    async def forget(self, tenant: str, thread_id: str) -> None:
        """Delete the automatic checkpoints of a thread that was ended on purpose."""
        for each in await self._catalogue.of(tenant):
            if each.thread_id == thread_id and each.automatic:
                await self._delete(each)

    # Room

    async def _make_room(self, new: Manifest) -> None:
        """Delete automatic checkpoints, the oldest first, until the new one fits. Raises DiskFull
        if it does not: named ones are never deleted."""
        there = await self._catalogue.of(new.tenant)
        if new.automatic:
            of_thread = [m for m in there if m.automatic and m.thread_id == new.thread_id]
            for each in of_thread[AUTOMATIC - 1 :]:
                await self._delete(each)
                there.remove(each)
        for each in _dispensable(there, new):
            if _stored([*there, new]) <= self._quota:
                return
            await self._delete(each)
            there.remove(each)
        used = _stored([*there, new])
        if used > self._quota:
            raise DiskFull(
                f"the checkpoints would take {size_text(used)}, and SANDBOX_CHECKPOINT_QUOTA of the"
                f" server is {size_text(self._quota)}; delete some of them",
                limit_bytes=self._quota,
            )

    async def _delete(self, manifest: Manifest) -> None:
        log.info("checkpoint.deleted", thread=manifest.thread_id,
                 checkpoint=manifest.checkpoint_id)  # fmt: skip
        try:
            await self.delete(manifest.tenant, manifest.checkpoint_id)
        except SandboxError as exc:
            log.warning("checkpoint.not_deleted", checkpoint=manifest.checkpoint_id,
                        why=exc.message)  # fmt: skip

    async def tidy(self) -> None:
        """Delete automatic checkpoints past their retention, and segments that none has. A segment
        that was put or used within twice the refresh time stays: its checkpoint may not be written
        yet."""
        names: dict[str, list[tuple[str, float]]] = {}
        tenants: dict[str, str] = {}
        async for each in self._store.list(""):
            folder, kind, *_ = [*each.name.split("/"), ""]
            if kind == "segments":
                names.setdefault(folder, []).append((each.name, each.age_s))
            elif kind == "checkpoints" and folder not in tenants:
                tenant = await self._catalogue.tenant_of(each.name)
                tenants |= {} if tenant is None else {folder: tenant}
        for tenant in tenants.values():
            for manifest in await self._catalogue.of(tenant):
                if manifest.automatic and time.time() - manifest.created_at > self.retention_s:
                    await self._delete(manifest)
        for folder, found in names.items():
            if folder in self._catalogue.unreadable:
                continue
            used: set[str] = set()
            if folder in tenants:
                tenant = tenants[folder]
                for manifest in await self._catalogue.of(tenant):
                    used |= {segment_name(tenant, segment.digest) for segment in manifest.segments}
            for name, age_s in found:
                if name not in used and age_s > 2 * self._store.refresh_s:
                    await self._store.delete(name)
        if self._images is not None:
            for folder in self._images.folders():
                if folder not in self._catalogue.unreadable:
                    there = await self._catalogue.of(tenants[folder]) if folder in tenants else []
                    known = (each.disk.file for each in there if each.disk is not None)
                    await self._images.tidy(folder, known)


def _dispensable(there: Iterable[Manifest], new: Manifest) -> list[Manifest]:
    """Automatic ones in the order in which they are deleted: first those of threads that have a
    newer one, then the oldest. Never the new one's own thread's last, unless the new one is it."""
    seen: set[str] = {new.thread_id}
    superseded: list[Manifest] = []
    last: list[Manifest] = []
    for each in there:  # Newest first.
        if each.automatic:
            (superseded if each.thread_id in seen else last).append(each)
        seen.add(each.thread_id)
    return [*reversed(superseded), *reversed(last)]


def _stored(manifests: Iterable[Manifest]) -> int:
    """Bytes in the store: what several have is there once. Copies of disks count in full, though
    they share what has not changed."""
    every = [*manifests]
    unique = {segment.digest: segment.stored for each in every for segment in each.segments}
    return sum(unique.values()) + sum(each.disk.used for each in every if each.disk is not None)
