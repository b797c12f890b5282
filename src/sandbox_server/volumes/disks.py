"""Volumes as disks of their own, for a server that is root: one file with ext4 for each.

The kernel is the lock: a volume is in use exactly while its file has a loop device, which lives as
long as somebody has it open or mounted. So nothing has to be let go of after a crash, and no record
of ours can be wrong. What a device cannot tell, its label does: the thread that has it.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from sandbox_sdk.protocol.models import VolumeMount
from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.base import BoxVolume
from sandbox_server.runtime.loop_disk import LABEL_BYTES, LoopUse
from sandbox_server.volumes import ext4
from sandbox_server.volumes.store import InUse, StoredVolume

_SUFFIX = ".img"


class VolumeDisks:
    about = "a disk each, in the state folder"

    def names(self, folder: Path) -> list[str]:
        return sorted(path.stem for path in folder.glob(f"*{_SUFFIX}"))

    def look(self, folder: Path, name: str) -> StoredVolume:
        path = _path(folder, name)
        found = path.stat()
        return StoredVolume(
            name=name, size=found.st_size, used=found.st_blocks * 512, made_at=ext4.made_at(path)
        )

    def make(self, folder: Path, name: str, size: int) -> None:
        ext4.make(_path(folder, name), size)

    def attach(
        self, folder: Path, mount: VolumeMount, thread_id: str, held: contextlib.ExitStack
    ) -> BoxVolume:
        assert mount.name is not None
        path, label, read_only = _path(folder, mount.name), _label(thread_id), mount.mode == "ro"
        use = loop_disk.use_of(path)
        if use is None:
            ext4.repair(path)
        elif use.read_only != read_only or not (read_only or use.label == label):
            raise _in_use(use)
        disk = held.enter_context(loop_disk.attached(path, label=label, read_only=read_only))
        return BoxVolume(
            name=mount.path.rpartition("/")[2],
            device=disk.device,
            size=path.stat().st_size,
            read_only=read_only,
        )

    def remove(self, folder: Path, name: str) -> None:
        path = _path(folder, name)
        if (use := loop_disk.use_of(path)) is not None:
            raise _in_use(use)
        path.unlink()


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}{_SUFFIX}"


def _label(thread_id: str) -> str:
    """A thread in a label of a loop device. Not every name fits, so its digest comes first."""
    digest = hashlib.sha256(thread_id.encode()).hexdigest()[:16]
    return f"{digest} {thread_id}"[:LABEL_BYTES]


def _in_use(use: LoopUse) -> InUse:
    return InUse(use.label.partition(" ")[2], "ro" if use.read_only else "rw")
