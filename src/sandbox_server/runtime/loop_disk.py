"""A disk of fixed size for one box: ext4 in an unlinked file (O_TMPFILE) behind a loop device.

Nothing has to be cleaned up: the file never has a name, and the device has the autoclear flag, so
the kernel releases it with its last user: first this process, then the engine's mount.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import stat
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime import disk_copies
from sandbox_server.runtime.disk_copies import closing
from sandbox_server.runtime.fsmount import mount_nowhere

_CONTROL = "/dev/loop-control"
_LOOP_CONFIGURE = 0x4C0A
_LOOP_GET_STATUS64 = 0x4C05
_INFO_BYTES = 232
_LOOP_CTL_GET_FREE = 0x4C82
_FLAG_READ_ONLY, _FLAG_AUTOCLEAR = 1, 4
_INFO_FLAGS, _INFO_LABEL, LABEL_BYTES = 52, 56, 63
"""Where struct loop_info64 has its flags and its label, and the bytes that fit into that."""
_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
"""struct loop_config: fd, block size, struct loop_info64, reserved."""
_FREE_S = 10.0
"""How long to look for a free device: the kernel offers the same one to all concurrent callers, and
one that is being released is still busy."""
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

MOUNT_OPTIONS = "nosuid,nodev,noatime,nobarrier,discard,noinit_itable"
"""A box does not survive a crash of its machine, so writes need not reach the real disk (nobarrier)
and inode tables are not zeroed in the background. discard returns deleted blocks to the host."""

MOUNT_FLAGS = frozenset({"nosuid", "nodev", "noatime"})
"""Those of them that mount(2) takes as flags."""

_BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class LoopUse:
    """The loop device that a file has."""

    device: str
    label: str
    read_only: bool


class LoopDisk:
    """A loop device. It exists while this object is open or its file system is mounted."""

    def __init__(self, device: str, fd: int) -> None:
        self.device = device
        self.handle = ""
        """Finds the file behind it again: see disk_copies.py. Empty where it has none."""
        self._fd = fd

    def __repr__(self) -> str:
        return f"<LoopDisk {self.device}{'' if self._fd >= 0 else ' closed'}>"

    def __enter__(self) -> LoopDisk:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the device. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def obstacle(folder: Path) -> str:
    """Why no disk can be made here; empty if one can. Blocks: it makes one to find out."""
    if os.geteuid() != 0:
        return "only root may attach loop devices"
    if not os.access(_CONTROL, os.R_OK | os.W_OK):
        return f"{_CONTROL} is missing: load the kernel's loop module"
    if shutil.which("mkfs.ext4", path=SEARCH_PATH) is None:
        return "mkfs.ext4 is missing: install e2fsprogs"
    try:
        new_disk(folder, size=4 << 20, inodes=64, label="sandbox-probe").close()
    except OSError as exc:
        return f"cannot attach a loop device to a file in {folder} ({exc}); needs Linux 5.8"
    return ""


def new_disk(
    folder: Path, *, size: int, inodes: int, label: str, image: Path | None = None
) -> LoopDisk:
    """A new file system owned by uid 1000, on its own loop device. It has at most one inode per
    block. Blocks for about 1 ms, the first of its size for 10 ms. Raises OSError.

    image: a copy of a disk, on the file system of the folder, that it begins as.
    """
    inodes = min(inodes, size // _BLOCK)
    with disk_copies.nameless(folder) as backing:
        if image is None:
            os.ftruncate(backing, size)
            for offset, data in _template(folder, size, inodes):
                os.pwrite(backing, data, offset)
        else:
            with image.open("rb") as source:
                disk_copies.clone(source.fileno(), backing)
        disk = _attach(backing, label)
        with contextlib.suppress(OSError):
            disk.handle = disk_copies.handle_of(backing)
        return disk


def attached_to_read(file: Path) -> LoopDisk:
    """A new loop device that cannot be written to. Raises OSError."""
    with closing(os.open(file, os.O_RDONLY | os.O_CLOEXEC)) as backing:
        return _attach(backing, "sandbox-read", read_only=True)


def attached(file: Path, *, label: str = "sandbox-pool", read_only: bool = False) -> LoopDisk:
    """The loop device of a file: the one that it has, or a new one. Raises OSError."""
    access = os.O_RDONLY if read_only else os.O_RDWR
    with closing(os.open(file, access | os.O_CLOEXEC)) as backing:
        wanted = os.fstat(backing)
        if (use := _use_of(wanted)) is not None:
            fd = os.open(use.device, os.O_RDONLY | os.O_CLOEXEC)
            if _info(fd, wanted) is not None:  # It must not have changed meanwhile.
                return LoopDisk(use.device, fd)
            os.close(fd)
        return _attach(backing, label, read_only=read_only)


def use_of(file: Path) -> LoopUse | None:
    """The loop device of a file; None if nobody uses the file as a disk. Raises OSError."""
    return _use_of(file.stat())


def _use_of(wanted: os.stat_result) -> LoopUse | None:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        device = _device_node(int(path.parts[3].removeprefix("loop")))
        try:
            with closing(os.open(device, os.O_RDONLY | os.O_CLOEXEC)) as fd:
                info = _info(fd, wanted)
        except OSError:
            continue  # Released meanwhile.
        if info is not None:
            (flags,) = struct.unpack_from("=I", info, _INFO_FLAGS)
            label = info[_INFO_LABEL : _INFO_LABEL + LABEL_BYTES].partition(b"\0")[0]
            return LoopUse(
                device=device,
                label=label.decode("utf-8", "replace"),
                read_only=bool(flags & _FLAG_READ_ONLY),
            )
    return None


def _info(fd: int, wanted: os.stat_result) -> bytes | None:
    """The struct loop_info64 of a device; None if another file is behind it, or none."""
    try:
        info = fcntl.ioctl(fd, _LOOP_GET_STATUS64, bytes(_INFO_BYTES))
    except OSError:
        return None
    same = struct.unpack_from("=QQ", info)[:2] == (_encoded(wanted.st_dev), wanted.st_ino)
    return info if same else None


def _encoded(device: int) -> int:
    """A device number as the kernel has it in struct loop_info64 (huge_encode_dev)."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


@lru_cache(maxsize=8)
def _template(folder: Path, size: int, inodes: int) -> tuple[tuple[int, bytes], ...]:
    """What mkfs writes into an empty file of this size, as (offset, bytes): about 100 KiB.

    Cached: writing these is thirty times faster than running mkfs for every box.
    """
    with disk_copies.nameless(folder) as file:
        os.ftruncate(file, size)
        features = "^has_journal,^resize_inode"
        extended = "root_owner=1000:1000,lazy_itable_init=1,nodiscard"
        options = ["-q", "-F", "-O", features, "-m", "0", "-N", str(inodes), "-E", extended]
        run_tool("mkfs.ext4", *options, f"/dev/fd/{file}", fds=[file])
        if shutil.which("debugfs", path=SEARCH_PATH) is not None:
            run_tool("debugfs", "-w", "-R", "rmdir lost+found", f"/dev/fd/{file}", fds=[file])
        return tuple(_extents(file))


def run_tool(*words: str, fds: Sequence[int] = (), within_s: float | None = None) -> None:
    """fds: descriptors that it has, too. Raises OSError, subprocess.SubprocessError."""
    env = {**os.environ, "PATH": SEARCH_PATH}
    done = subprocess.run(
        words, pass_fds=fds, env=env, capture_output=True, text=True, timeout=within_s, check=False
    )
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{words[0]} failed: {done.stderr.strip()[:300]}")


def _extents(file: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return found
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        found.append((start, os.pread(file, end - start, start)))


def _attach(backing: int, label: str, *, read_only: bool = False) -> LoopDisk:
    flags = _FLAG_AUTOCLEAR | (_FLAG_READ_ONLY if read_only else 0)
    name = label.encode()[:LABEL_BYTES]
    config = _CONFIG.pack(backing, 0, *[0] * 5, 0, 0, 0, flags, name, b"", b"", *[0] * 10)
    with closing(os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)) as control:
        deadline, pause_s = time.monotonic() + _FREE_S, 0.001
        while True:
            try:
                return _configure(fcntl.ioctl(control, _LOOP_CTL_GET_FREE), config)
            except OSError as exc:
                if exc.errno not in (errno.EBUSY, errno.ENOENT):
                    raise
                if time.monotonic() > deadline:
                    text = f"no loop device became free within {_FREE_S:g} s; see losetup -a"
                    raise OSError(errno.EBUSY, text) from exc
            # Jitter: concurrent callers must not retry at the same moment.
            time.sleep(random.uniform(0, pause_s))
            pause_s = min(pause_s * 2, 0.05)


def _configure(number: int, config: bytes) -> LoopDisk:
    """Raises OSError; EBUSY if another process took the device first."""
    device = _device_node(number)
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
    except OSError:
        os.close(fd)
        raise
    return LoopDisk(device, fd)


def make_folders(device: str, names: Iterable[str], *, owner: int) -> None:
    """Have folders at the top of a disk that is not mounted yet, for volumes. Raises OSError, and
    InvalidRequest for what is there and is no folder: a mount would follow a link."""
    options = [each for each in MOUNT_OPTIONS.split(",") if each not in MOUNT_FLAGS]
    with closing(mount_nowhere(device, "ext4", options)) as top:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=top)
                os.chown(name, owner, owner, dir_fd=top)
            if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                raise InvalidRequest(
                    f"no volume can be at {WORKSPACE}/{name}: it is a file or a link in what the"
                    " session begins with"
                )


def _device_node(number: int) -> str:
    """The path of a loop device. Created if neither devtmpfs nor udev has done so."""
    path = f"/dev/loop{number}"
    if not os.path.exists(path):
        numbers = Path(f"/sys/block/loop{number}/dev").read_text().strip()
        major, minor = map(int, numbers.split(":"))
        with contextlib.suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(major, minor))
    return path
