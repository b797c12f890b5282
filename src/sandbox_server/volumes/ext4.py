"""The disk of a volume: ext4 in a sparse file, whose size is the most that the volume can hold.

Nothing else is stored of a volume. Its size is that of the file, when it was made is in the file
system, and who uses it is known to the kernel: a file that is used as a disk has a loop device.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
from pathlib import Path

from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.base import VOLUME_OPTIONS, VOLUME_OWNER
from sandbox_server.runtime.fsmount import mount_nowhere

_SUPERBLOCK, _SUPERBLOCK_BYTES = 1024, 1024
_STATE, _INCOMPATIBLE, _MADE_AT = 0x3A, 0x60, 0x108
"""Where the superblock of ext4 has these fields."""
_CLEAN, _NEEDS_RECOVERY = 1, 4
_TOOL_S = 600.0
NEW = ".new"
"""Suffix of a file that is not a volume yet."""


def make(path: Path, size: int) -> None:
    """Make an empty disk. It appears once it is complete. Blocks. Raises OSError."""
    new = path.with_name(path.name + NEW)
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.truncate(size)
    extended = f"root_owner={VOLUME_OWNER}:{VOLUME_OWNER},lazy_itable_init=1,nodiscard"
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", extended, str(new))
    with loop_disk.attached(new, label="sandbox-volume") as disk:
        top = mount_nowhere(disk.device, "ext4", VOLUME_OPTIONS.split(","))
        try:
            os.rmdir("lost+found", dir_fd=top)
        finally:
            os.close(top)
    new.rename(path)


def made_at(path: Path) -> float:
    """When the disk was made. Raises OSError."""
    return float(struct.unpack_from("<I", _superblock(path), _MADE_AT)[0])


def repair(path: Path) -> None:
    """Bring a disk that nobody uses in order, if its machine has crashed: one that is attached
    read-only cannot be mended by the kernel. Blocks. Raises OSError."""
    block = _superblock(path)
    (state,) = struct.unpack_from("<H", block, _STATE)
    (features,) = struct.unpack_from("<I", block, _INCOMPATIBLE)
    if state != _CLEAN or features & _NEEDS_RECOVERY:
        _run("e2fsck", "-p", str(path), fine=(0, 1))


def _superblock(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(_SUPERBLOCK)
        block = file.read(_SUPERBLOCK_BYTES)
    if len(block) < _SUPERBLOCK_BYTES:
        raise OSError(errno.EIO, f"{path} is no disk")
    return block


def _run(*command: str, fine: tuple[int, ...] = (0,)) -> None:
    environ = {**os.environ, "PATH": loop_disk.SEARCH_PATH}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_TOOL_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise OSError(errno.EIO, f"{command[0]} did not end within {_TOOL_S:g} s") from exc
    if done.returncode not in fine:
        output = (done.stderr.strip() or done.stdout.strip())[:300]
        raise OSError(errno.EIO, f"{command[0]} failed: {output}")
