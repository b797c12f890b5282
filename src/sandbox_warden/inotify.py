"""The kernel's inotify: what changes in folders that are watched."""

import ctypes
import errno
import os
import struct
from typing import Iterator, NamedTuple

from .errors import Refused

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED, IS_FOLDER = 0x2000, 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS = 0x01000000
_MASK = (
    MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF
    | MOVE_SELF | _ONLY_FOLDERS
)  # fmt: skip
_EVENT = struct.Struct("iIII")
_READ_SIZE = 16 * 1024


class Change(NamedTuple):
    folder: int
    """The number that add() gave."""
    mask: int
    cookie: int
    """The same for both halves of a rename."""
    name: str
    """Empty for the folder itself."""


class Inotify:
    def __init__(self) -> None:
        """Raises Refused."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise _refused(ctypes.get_errno())

    def close(self) -> None:
        os.close(self.fd)

    def add(self, folder: int) -> int:
        """Watch an open folder. The same folder has the same number. Raises Refused."""
        path = b"/proc/self/fd/%d" % folder
        number = int(self._libc.inotify_add_watch(self.fd, path, _MASK))
        if number < 0:
            raise _refused(ctypes.get_errno())
        return number

    def remove(self, number: int) -> None:
        self._libc.inotify_rm_watch(self.fd, number)  # It may be gone with its folder.

    def read(self) -> Iterator[Change]:
        """Some of what has changed; nothing if that was all."""
        try:
            data = os.read(self.fd, _READ_SIZE)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            folder, mask, cookie, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            yield Change(folder, mask, cookie, name)


def _refused(number: int) -> Refused:
    if number in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        message = "the machine's inotify limits are reached (%s): end other watches, or watch less"
        return Refused("exhausted", message % os.strerror(number))
    if number in (errno.EACCES, errno.EPERM):
        return Refused("permission_denied", "a folder that may not be read cannot be watched")
    return Refused("failed", "a folder cannot be watched: %s" % os.strerror(number))
