"""Copies of whole disks, where that costs nothing: one file for each checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.checkpoints.manifest import DiskCopy, Manifest, damaged, folder_of
from sandbox_server.private import private_folder
from sandbox_server.runtime.base import Box, DiskImage

_SUFFIX = ".img"
_GRACE_S = 600.0
"""A copy without a checkpoint is younger than this if its checkpoint is being taken."""


class Images:
    """In a folder on the file system of the boxes' disks. Raises RuntimeUnavailable if it cannot be
    used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            private_folder(folder)
        except OSError as exc:
            raise RuntimeUnavailable(f"{folder} cannot be used: {exc}") from exc

    async def take(
        self, box: Box, tenant: str, checkpoint_id: str, *, provider: str, size: int
    ) -> DiskCopy:
        """Copy the disk of a box that stands still. size: of the disk."""
        owner = box.disk_owner
        assert owner is not None
        file = f"{checkpoint_id}-{os.urandom(4).hex()}{_SUFFIX}"
        path = self._path(tenant, file)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        use = await box.copy_disk(path)
        return DiskCopy(
            file=file, provider=provider, size=size, used=use.bytes, inodes=use.inodes, owner=owner
        )

    def image(self, manifest: Manifest) -> DiskImage:
        """What a box can begin with. Raises CheckpointDamaged if it is gone."""
        assert manifest.disk is not None
        path = self._path(manifest.tenant, manifest.disk.file)
        if not path.exists():
            raise damaged(manifest.checkpoint_id, "the copy of its disk is gone")
        return DiskImage(path=path, owner=manifest.disk.owner)

    async def delete(self, tenant: str, copy: DiskCopy) -> None:
        path = self._path(tenant, copy.file)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def tidy(self, folder: str, known: Iterable[str]) -> None:
        """Delete the copies of a tenant but those known. folder: of the tenant."""
        await asyncio.to_thread(self._tidy, self._folder / folder, set(known))

    def folders(self) -> list[str]:
        """Of the tenants that have any."""
        return [path.name for path in self._folder.iterdir() if path.is_dir()]

    def _tidy(self, folder: Path, known: set[str]) -> None:
        for path in folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                age_s = time.time() - path.stat().st_ctime
                if path.name not in known and age_s > _GRACE_S:
                    path.unlink()

    def _path(self, tenant: str, file: str) -> Path:
        return self._folder / folder_of(tenant) / file
