"""Files and folders that only the server's user can access: other users of the machine must not
see who has which sandbox, nor connect to one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

_OURS = ("boxes", "uids", "shared", "layers", "history", "mounts", "lost+found",
         "images", "pool.xfs", "pool.xfs.new",
         "keys.secret", "*.lock", "*.home", "*.sock", "*.log", "*.artifacts", "*.checkpoints",
         "*.outbox", "*.outbox-wal", "*.outbox-shm", "*.outbox-journal",
         "volumes", "*.volumes",
         "*.sqlite", "*.sqlite-wal", "*.sqlite-shm", "*.sqlite-journal",
         "*.history", "*.history-wal", "*.history-shm", "*.history-journal",
         "*.usage", "*.usage-wal", "*.usage-shm", "*.usage-journal")  # fmt: skip
"""Patterns of all names in a state folder."""


def private_folder(path: Path) -> None:
    """Create a folder with mode 0700, or set that on an existing one.

    A folder that contains files of others keeps its mode, to not lock them out; our own files in it
    are private anyway. Raises OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    open_to_others = stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid()
    if open_to_others and all(map(_is_ours, os.listdir(path))):
        path.chmod(0o700)


def _is_ours(name: str) -> bool:
    return any(fnmatchcase(name, ours) for ours in _OURS)


def private_file(path: Path) -> None:
    """Create an empty file with mode 0600, or set that on an existing one. Raises OSError.

    One that is private already is not opened: when it was closed again, this process would lose the
    locks of SQLite on it, and another process could remove a log that is still written to.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat().st_mode
        if stat.S_ISREG(found) and not stat.S_IMODE(found) & 0o077:
            return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process, and no other user of the file in this one, is in here. Blocks.
    Raises OSError."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


_held: set[int] = set()
"""Descriptors of locks that this process holds."""


def lock_file(path: Path) -> int:
    """Lock a private file until unlock_file(), or the end of this process. Raises BlockingIOError
    if somebody else has it, OSError."""
    private_file(path)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    _held.add(fd)
    return fd


def unlock_file(fd: int) -> None:
    if fd in _held:
        _held.discard(fd)
        os.close(fd)


def _unlock_after_fork() -> None:
    """Close the locks in a forked child, which would keep them after the parent ends."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_unlock_after_fork)


def state_folder() -> Path:
    """The default folder for what must survive a restart."""
    if os.geteuid() == 0:
        return Path("/var/lib/sandbox")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "sandbox"


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A short path of a socket, through a descriptor of its folder: the kernel takes at most 107
    bytes. Valid inside the context. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def private_listener(path: Path, *, backlog: int) -> socket.socket:
    """A listening unix socket with mode 0600. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # Before bind() gives it a path that others can open.
        with short_path(path) as name:
            listener.bind(name)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener
