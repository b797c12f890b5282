"""File systems that are mounted, but nowhere: only who has the descriptor sees them, and with its
last user, however that ends, the kernel unmounts them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

# Numbers and flags of system calls that libc may be too old for; the same on every architecture.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_NOSUID, _NODEV, _NOATIME = 0x2, 0x4, 0x10
_libc = ctypes.CDLL(None, use_errno=True)


def mount_nowhere(device: str, kind: str, options: Sequence[str] = ()) -> int:
    """A descriptor of the root folder of a device's file system. Raises OSError.

    options: flags of the file system itself, such as discard.
    """
    context = _check(_libc.syscall(_FSOPEN, kind.encode(), _CLOEXEC), "fsopen")
    try:
        source = _libc.syscall(_FSCONFIG, context, _SET_STRING, b"source", device.encode(), 0)
        _check(source, "fsconfig")
        for option in options:
            done = _libc.syscall(_FSCONFIG, context, _SET_FLAG, option.encode(), None, 0)
            _check(done, f"fsconfig {option}")
        _check(_libc.syscall(_FSCONFIG, context, _CREATE, None, None, 0), f"mount of {device}")
        flags = _NOSUID | _NODEV | _NOATIME
        return _check(_libc.syscall(_FSMOUNT, context, _CLOEXEC, flags), "fsmount")
    finally:
        os.close(context)


@contextlib.contextmanager
def mounted_nowhere(device: str, kind: str, options: Sequence[str] = ()) -> Iterator[Path]:
    """The same, as a folder of this process, for a while. Raises OSError."""
    top = mount_nowhere(device, kind, options)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{top}")
    finally:
        os.close(top)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
