"""Files and folders for the server's own user alone: other users of the machine are not to read who
has which sandbox, nor to connect to one."""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path

_OURS = ("boxes", "uids", "shared", "history", "lost+found", "*.lock", "*.home", "*.sock", "*.log",
         "*.sqlite", "*.sqlite-wal", "*.sqlite-shm", "*.sqlite-journal")  # fmt: skip
"""All that a state folder has in it."""


def private_folder(path: Path) -> None:
    """Make a folder that nobody else can look into, or close one that is there.

    One with things of others in it keeps its mode, since closing it may lock them out; what we keep
    there is private all the same. Raises OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    open_to_others = stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid()
    if open_to_others and all(map(_is_ours, os.listdir(path))):
        path.chmod(0o700)


def _is_ours(name: str) -> bool:
    return any(fnmatchcase(name, ours) for ours in _OURS)


def private_file(path: Path) -> None:
    """Make an empty file that nobody else can read or write, or close one that is there. Raises
    OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
