"""The warden's own entry in /proc.

The kernel shows a process its own memory, environment and descriptors, and those of the warden are
nothing for the user of the box. Every other process is shown to the warden as it is to the user.
"""

import ctypes
import os

_PROC_SUPER_MAGIC = 0x9FA0


def is_warden(folder: int, name: str) -> bool:
    """Whether a name in an open folder is the warden's entry in a procfs, wherever that is mounted.
    The warden has no threads, so there is one; `self` and `thread-self` are links to it."""
    if not name.isdecimal():
        return False
    try:
        if os.readlink("self", dir_fd=folder) != name:
            return False
    except OSError:
        return False
    return _type(folder) == _PROC_SUPER_MAGIC


def _type(folder: int) -> int:
    """The kind of file system that a folder is on; procfs if it cannot be told."""
    about = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).fstatfs(folder, about) != 0:
        return _PROC_SUPER_MAGIC
    return ctypes.c_long.from_buffer(about).value
