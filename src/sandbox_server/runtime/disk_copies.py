"""Copies of disks that cost nothing: a clone shares the blocks of a file until either is written to
(reflinks, as XFS and btrfs have them).

The file behind a disk has no name (loop_disk.py). The kernel's handle of it finds it again, also
after a restart of the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FICLONE = 0x40049409
_AT_EMPTY_PATH = 0x1000
_HANDLE_BYTES = 128
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class _Handle(ctypes.Structure):
    """struct file_handle."""

    _fields_ = (
        ("handle_bytes", ctypes.c_uint),
        ("handle_type", ctypes.c_int),
        ("f_handle", ctypes.c_ubyte * _HANDLE_BYTES),
    )


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """What is on a disk."""

    bytes: int
    inodes: int


def obstacle(folder: Path) -> str:
    """Why files of a folder cannot be cloned; empty if they can."""
    try:
        with nameless(folder) as one, nameless(folder) as other:
            os.write(one, bytes(4096))
            os.fsync(one)
            fcntl.ioctl(other, _FICLONE, one)
            os.close(open_handle(folder, handle_of(one)))
    except OSError as exc:
        return f"the file system of {folder} cannot share blocks between files ({exc.strerror})"
    return ""


@contextlib.contextmanager
def nameless(folder: Path) -> Iterator[int]:
    """A new file without a name. Raises OSError."""
    with closing(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)) as file:
        yield file


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def handle_of(file: int) -> str:
    """Finds an open file again, as long as anybody has it open. Raises OSError."""
    handle, mount = _Handle(handle_bytes=_HANDLE_BYTES), ctypes.c_int()
    _check(
        _libc.name_to_handle_at(
            file, b"", ctypes.byref(handle), ctypes.byref(mount), _AT_EMPTY_PATH
        )
    )
    body = bytes(handle.f_handle[: handle.handle_bytes])
    return f"{handle.handle_type:x}-{body.hex()}"


def open_handle(folder: Path, text: str) -> int:
    """The file of a handle, on the file system of a folder. Raises OSError; only root may."""
    kind, _, body = text.partition("-")
    data = bytes.fromhex(body)
    handle = _Handle(handle_bytes=len(data), handle_type=int(kind, 16))
    ctypes.memmove(handle.f_handle, data, len(data))
    with closing(os.open(folder, _FOLDER)) as at:
        flags = os.O_RDONLY | os.O_CLOEXEC
        return _check(_libc.open_by_handle_at(at, ctypes.byref(handle), flags))


def clone(source: int, target: int) -> None:
    """Give one file the content of another. Writes out what is not on disk yet. Raises OSError."""
    fcntl.ioctl(target, _FICLONE, source)


def copy_disk(folder: Path, handle: str, workspace: str, target: Path, *, durable: bool) -> DiskUse:
    """Clone a disk in use, to which nothing is written meanwhile, into a new file. Blocks.

    workspace: where its file system is mounted. durable: whether it survives the machine.
    Raises OSError. A target that was not finished is removed.
    """
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with (
        closing(os.open(workspace, _FOLDER)) as mounted,
        closing(open_handle(folder, handle)) as source,
        closing(os.open(target, new, 0o600)) as made,
    ):
        try:
            _check(_libc.syncfs(mounted))
            clone(source, made)
            if durable:
                os.fsync(made)
        except BaseException:
            os.unlink(target)
            raise
        found = os.fstatvfs(mounted)
    return DiskUse(
        bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
        inodes=found.f_files - found.f_ffree,
    )


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
