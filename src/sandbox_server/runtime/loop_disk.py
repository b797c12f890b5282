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
from functools import lru_cache
from pathlib import Path

from sandbox_server.runtime import disk_copies

_CONTROL = "/dev/loop-control"
_LOOP_CONFIGURE = 0x4C0A
_LOOP_GET_STATUS64 = 0x4C05
_INFO_BYTES = 232
_LOOP_CTL_GET_FREE = 0x4C82
_FLAG_READ_ONLY, _FLAG_AUTOCLEAR = 1, 4
_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
"""struct loop_config: fd, block size, struct loop_info64, reserved."""
_FREE_S = 10.0
"""How long to look for a free device: the kernel offers the same one to all concurrent callers, and
one that is being released is still busy."""
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

MOUNT_OPTIONS = "nosuid,nodev,noatime,nobarrier,discard,noinit_itable"
"""A box does not survive a crash of its machine, so writes need not reach the real disk (nobarrier)
and inode tables are not zeroed in the background. discard returns deleted blocks to the host."""

_BLOCK = 4096


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
    backing = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _attach(backing, "sandbox-read", flags=_FLAG_READ_ONLY)
    finally:
        os.close(backing)


def attached(file: Path) -> LoopDisk:
    """The loop device of a file: the one that it has, or a new one. Raises OSError."""
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        wanted = os.fstat(backing)
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            device = _device_node(int(path.parts[3].removeprefix("loop")))
            if _backs(device, wanted) and (fd := _opened(device, wanted)) is not None:
                return LoopDisk(device, fd)
        return _attach(backing, "sandbox-pool")
    finally:
        os.close(backing)


def _opened(device: str, wanted: os.stat_result) -> int | None:
    """Open a device that must not change meanwhile."""
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    if _backs(fd, wanted):
        return fd
    os.close(fd)
    return None


def _backs(device: str | int, wanted: os.stat_result) -> bool:
    """Whether a file is behind a loop device."""
    fd = device if isinstance(device, int) else os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = fcntl.ioctl(fd, _LOOP_GET_STATUS64, bytes(_INFO_BYTES))
        return struct.unpack_from("=QQ", info)[:2] == (_encoded(wanted.st_dev), wanted.st_ino)
    except OSError:
        return False
    finally:
        if isinstance(device, str):
            os.close(fd)


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
        _run(["mkfs.ext4", *options, f"/dev/fd/{file}"], file)
        if shutil.which("debugfs", path=SEARCH_PATH) is not None:
            _run(["debugfs", "-w", "-R", "rmdir lost+found", f"/dev/fd/{file}"], file)
        return tuple(_extents(file))


def _run(command: list[str], file: int) -> None:
    environ = {**os.environ, "PATH": SEARCH_PATH}
    done = subprocess.run(
        command, pass_fds=[file], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{command[0]} failed: {done.stderr.strip()[:300]}")


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


def _attach(backing: int, label: str, *, flags: int = 0) -> LoopDisk:
    flags |= _FLAG_AUTOCLEAR
    config = _CONFIG.pack(
        backing, 0, *[0] * 5, 0, 0, 0, flags, label.encode()[:63], b"", b"", *[0] * 10
    )
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
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
    finally:
        os.close(control)


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


def _device_node(number: int) -> str:
    """The path of a loop device. Created if neither devtmpfs nor udev has done so."""
    path = f"/dev/loop{number}"
    if not os.path.exists(path):
        numbers = Path(f"/sys/block/loop{number}/dev").read_text().strip()
        major, minor = map(int, numbers.split(":"))
        with contextlib.suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(major, minor))
    return path
