"""File systems that are mounted nowhere: whoever has the descriptor can use one, and it is let go
of when the last of its users has ended, in whatever way."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

# Numbers and flags of system calls that libc may be too old for; the same on every architecture.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_READ_ONLY, _NOSUID, _NODEV, _NOEXEC, _NOATIME = 0x1, 0x2, 0x4, 0x8, 0x10
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def mounted(device: str, kind: str, *, read_only: bool = False) -> Iterator[Path]:
    """The file system of a device, as a folder of this process. Only root may. Raises OSError."""
    fd = _mount(device, kind, read_only=read_only)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{fd}")
    finally:
        os.close(fd)


def _mount(device: str, kind: str, *, read_only: bool) -> int:
    context = _check(_libc.syscall(_FSOPEN, kind.encode(), _CLOEXEC), "fsopen")
    try:
        source = _libc.syscall(_FSCONFIG, context, _SET_STRING, b"source", device.encode(), 0)
        _check(source, "fsconfig")
        if read_only:
            _check(_libc.syscall(_FSCONFIG, context, _SET_FLAG, b"ro", None, 0), "fsconfig")
        _check(_libc.syscall(_FSCONFIG, context, _CREATE, None, None, 0), f"mount of {device}")
        flags = _NOSUID | _NODEV | _NOATIME | (_READ_ONLY | _NOEXEC if read_only else 0)
        return _check(_libc.syscall(_FSMOUNT, context, _CLOEXEC, flags), "fsmount")
    finally:
        os.close(context)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
