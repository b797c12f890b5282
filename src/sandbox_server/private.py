"""Files and folders for the server's own user alone: other users of the machine are not to read who
has which sandbox, nor to connect to one."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
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


def state_folder() -> Path:
    """Where servers of this user keep what has to outlive them, unless told otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/sandbox")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "sandbox"


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket while this is open: the kernel takes at most 107 bytes, and through a
    descriptor those of the folder do not count. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def private_listener(path: Path, *, backlog: int) -> socket.socket:
    """A unix socket for this user alone. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # Before it has a name that others could open.
        with short_path(path) as name:
            listener.bind(name)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener
