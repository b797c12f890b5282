"""Volumes as plain folders, for a server that is not root and makes embedded boxes.

Nothing keeps a box from writing more than the size of a volume; a volume that has become too large
is not given to another box.

<folder>/<name>/size           its size in bytes; made last
<folder>/<name>/files/         what is in it
<folder>/<name>/users/<digest> a thread that has it, and how: locked by the keeper of its box, so as
                               long as the box lives, and no longer
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from sandbox_sdk.protocol.errors import DiskFull, size_text
from sandbox_sdk.protocol.models import VolumeMode, VolumeMount
from sandbox_server.runtime.base import BoxVolume
from sandbox_server.volumes.store import InUse, StoredVolume


class VolumeFolders:
    about = "a folder each, in the state folder: sizes are not enforced, as the server is not root"

    def names(self, folder: Path) -> list[str]:
        return sorted(path.parent.name for path in folder.glob("*/size"))

    def look(self, folder: Path, name: str) -> StoredVolume:
        size = folder / name / "size"
        return StoredVolume(
            name=name,
            size=int(size.read_text()),
            used=_used(folder / name / "files"),
            made_at=size.stat().st_mtime,
        )

    def make(self, folder: Path, name: str, size: int) -> None:
        for part in ("files", "users"):
            (folder / name / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        new = folder / name / "size.new"
        new.write_text(str(size))
        new.rename(folder / name / "size")

    def attach(
        self, folder: Path, mount: VolumeMount, thread_id: str, held: contextlib.ExitStack
    ) -> BoxVolume:
        assert mount.name is not None
        name, read_only = mount.name, mount.mode == "ro"
        volume = self.look(folder, name)
        own = hashlib.sha256(thread_id.encode()).hexdigest()[:32]
        for path, user, mode in _users(folder / name):
            in_the_way = mode != mount.mode if path.name == own else "rw" in (mode, mount.mode)
            if in_the_way:
                raise InUse(user, mode)
        if volume.used > volume.size and not read_only:
            raise DiskFull(
                f"volume {name!r} has {size_text(volume.used)} in it, and its size is"
                f" {size_text(volume.size)}: mount it ro, or delete it",
                limit_bytes=volume.size,
            )
        return BoxVolume(
            name=mount.path.rpartition("/")[2],
            source=str(folder / name / "files"),
            size=volume.size,
            read_only=read_only,
            lock=_locked(folder / name / "users" / own, f"{mount.mode} {thread_id}", held),
        )

    def remove(self, folder: Path, name: str) -> None:
        for _, thread_id, mode in _users(folder / name):
            raise InUse(thread_id, mode)
        (folder / name / "size").unlink()  # It is no volume from now on.
        for parent, folders, _ in os.walk(folder / name):
            for each in folders:  # A box may have locked us out of its own.
                if not os.path.islink(path := os.path.join(parent, each)):
                    os.chmod(path, 0o700)
        shutil.rmtree(folder / name)


def _locked(path: Path, user: str, held: contextlib.ExitStack) -> int:
    """The descriptor of a thread's file, locked as long as anybody has it open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    held.callback(os.close, fd)
    fcntl.flock(fd, fcntl.LOCK_SH)  # Shared: for a moment two boxes of the thread may have it.
    os.ftruncate(fd, 0)
    os.pwrite(fd, user.encode(), 0)
    return fd


def _users(volume: Path) -> list[tuple[Path, str, VolumeMode]]:
    """Those whose boxes live. Forgets others."""
    found: list[tuple[Path, str, VolumeMode]] = []
    for path in sorted((volume / "users").iterdir()):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                mode, _, thread_id = file.read().decode().partition(" ")
                found.append((path, thread_id, "ro" if mode == "ro" else "rw"))
            else:
                path.unlink()
    return found


def _used(folder: Path) -> int:
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total
