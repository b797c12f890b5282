"""Marks that save_artifact leaves, and the clock of file times: nothing else here asks the wall
clock, which may jump."""

import os
import stat
import time
from typing import List

from .state import WORKSPACE

MARKS = "/tmp/.artifacts-"
"""Followed by the id of a command: the files it marked, each ended by a NUL."""
MARKS_BYTES = 64 * 1024
QUICKLY = 64
"""Most entries that are looked at before a result is told."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_COARSE = 5
"""CLOCK_REALTIME_COARSE, which the time module does not name."""


def file_clock() -> float:
    """Now, on the clock that files get their times from."""
    try:
        return time.clock_gettime(_COARSE)
    except OSError:
        return time.time() - 0.01


def is_unchanged(since: float) -> bool:
    """Whether no file below /workspace was made or changed since a time. Also False where there are
    too many to look at quickly: Changes looks at them all."""
    left, folders = QUICKLY, [WORKSPACE]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name[0] == ".":
                        continue  # Never an artifact.
                    left -= 1
                    if left < 0:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if max(status.st_mtime, status.st_ctime) >= since:
                        return False
        except OSError:
            return False
    return True


def has_marks(command_id: str) -> bool:
    return os.path.lexists(MARKS + command_id)


def take_marks(command_id: str, other_id: str) -> None:
    """Make the marks of one command those of another."""
    try:
        os.rename(MARKS + other_id, MARKS + command_id)
    except OSError:
        pass  # There are none.


def marked(command_id: str) -> List[str]:
    """The paths that a command marked."""
    try:
        fd = os.open(MARKS + command_id, _FILE)
    except OSError:
        return []
    try:
        data = os.read(fd, MARKS_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        data = b""
    finally:
        os.close(fd)
    return [os.fsdecode(path) for path in data.split(b"\0")[:-1] if path]
