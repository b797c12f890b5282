"""Where the disks of boxes lie: a folder whose files can be cloned, if there is one.

Where the state folder cannot do that, a sparse file with an XFS in it can: <state>/pool.xfs. It is
mounted, but nowhere: a server has it open, and the disks of boxes are files in it. When the last of
those has ended, in whatever way, the kernel lets go of it. A server that starts while boxes of an
earlier one run finds their loop device, and so the same file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox_server.private import one_at_a_time, private_folder
from sandbox_server.runtime import disk_copies, loop_disk
from sandbox_server.runtime.fsmount import mounted_nowhere

_SMALLEST = 512 << 20
"""mkfs.xfs makes nothing smaller than 300 MB."""
_LEFT = 0.95
"""Of the room in the state folder: what the pool may take."""
_TOOL_S = 60.0


@dataclass(frozen=True, kw_only=True)
class DiskPool:
    folder: Path
    no_copies: str = ""
    """Why disks cannot be copied at no cost; empty if they can."""

    @property
    def images(self) -> Path:
        """For copies of disks that outlive their boxes."""
        return self.folder / "images"


@contextlib.contextmanager
def open_pool(state: Path, *, wanted: bool = True) -> Iterator[DiskPool]:
    """The pool of a state folder. wanted: whether a file with XFS may be made for it."""
    private_folder(state)
    why = loop_disk.obstacle(state) or disk_copies.obstacle(state)
    if not why:
        yield DiskPool(folder=state)
    elif os.geteuid() != 0 or not wanted:
        yield DiskPool(folder=state, no_copies=why if wanted else "SANDBOX_DISK_POOL is off")
    else:
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(_mounted(state / "pool.xfs"))
            except (OSError, subprocess.SubprocessError) as exc:
                yield DiskPool(folder=state, no_copies=f"{why}, and no pool can be made: {exc}")
            else:
                yield DiskPool(folder=folder, no_copies=disk_copies.obstacle(folder))


def outlook(state: Path, *, wanted: bool) -> str:
    """Why open_pool() will not give a folder whose files can be cloned; empty if it will. Makes
    nothing."""
    there = next(each for each in (state, *state.parents) if each.exists())
    why = loop_disk.obstacle(there)
    if why or not (without := disk_copies.obstacle(there)):
        return why
    return (_lacks_tools() or _lacks_xfs()) if wanted else without


def _lacks_tools() -> str:
    found = shutil.which("mkfs.xfs", path=loop_disk.SEARCH_PATH)
    return "" if found else "mkfs.xfs is missing: install xfsprogs"


def _lacks_xfs() -> str:
    known = Path("/proc/filesystems").read_text().split()
    return "" if "xfs" in known else "the kernel has not loaded XFS: modprobe xfs"


@contextlib.contextmanager
def _mounted(file: Path) -> Iterator[Path]:
    """Raises OSError."""
    with one_at_a_time(file.with_suffix(".lock")):
        if not file.exists():
            _make(file)
        with contextlib.ExitStack() as stack:
            with loop_disk.attached(file) as disk:
                folder = stack.enter_context(mounted_nowhere(disk.device, "xfs"))
            mount = stack.pop_all()
    with mount:
        yield folder


def _make(file: Path) -> None:
    if why := _lacks_tools():
        raise OSError(errno.ENOENT, why)
    room = os.statvfs(file.parent)
    size = int(room.f_bavail * room.f_frsize * _LEFT)
    if size < _SMALLEST:
        raise OSError(errno.ENOSPC, f"{file.parent} has less than {_SMALLEST >> 20} MB left")
    new = file.with_name(file.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as opened:
        opened.truncate(size)
    loop_disk.run_tool("mkfs.xfs", "-q", "-m", "reflink=1", str(new), within_s=_TOOL_S)
    new.rename(file)
