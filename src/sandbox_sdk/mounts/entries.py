"""What a folder of this machine has in it, without following any link."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Literal

from sandbox_sdk.inside import FOLDER, Steps

Kind = Literal["file", "directory", "symlink", "other"]
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """Two are equal if they have the same content: of modes only `executable` counts, as in git."""

    kind: Kind
    executable: bool = False
    sha256: str = ""
    target: str = ""
    """Of a link."""
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[str, bool, str, str]:
        return self.kind, self.executable, self.sha256, self.target

    def looks_like(self, status: os.stat_result) -> bool:
        """Whether a file is unchanged as far as its size and time tell, without reading it."""
        if self.kind != "file" or kind_of(status) != "file":
            return False
        seen = (status.st_size, status.st_mtime_ns, stat.S_IMODE(status.st_mode))
        return seen == (self.size, self.mtime_ns, self.mode)


def kind_of(status: os.stat_result) -> Kind:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "other")


def entry_of(above: int, name: str, status: os.stat_result, *, read: bool = True) -> Entry:
    """The entry of a name in an open folder; read: with the sha256 of a file. Raises OSError."""
    kind, mode = kind_of(status), stat.S_IMODE(status.st_mode)
    if kind == "symlink":
        return Entry(kind, target=os.readlink(name, dir_fd=above), mtime_ns=status.st_mtime_ns)
    if kind != "file":
        return Entry(kind, mode=mode, mtime_ns=status.st_mtime_ns)
    found = Entry(
        kind, bool(mode & 0o100), size=status.st_size, mode=mode, mtime_ns=status.st_mtime_ns
    )
    if not read:
        return found
    with opened(above, name) as file:
        return replace(found, sha256=hashlib.file_digest(file, "sha256").hexdigest())


@contextlib.contextmanager
def opened(above: int, name: str) -> Iterator[BufferedReader]:
    """A regular file, for reading. Raises OSError, also where it has become something else."""
    fd = os.open(name, _FILE, dir_fd=above)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name} is not a file any more")
        yield file


def walk(folder: Path) -> Iterator[tuple[int, str, str, os.stat_result | OSError]]:
    """Everything below a folder, parents first: the open folder it is in, its name, its path, and
    what it is. Raises OSError if the folder itself cannot be read."""
    os.scandir(folder).close()
    unread: list[OSError] = []
    for above, folders, files, fd in os.fwalk(folder, follow_symlinks=False, onerror=unread.append):
        below = os.path.relpath(above, folder)
        folders.sort()
        for name in sorted((*folders, *files)):
            path = name if below == "." else f"{below}/{name}"
            try:
                status: os.stat_result | OSError = os.lstat(name, dir_fd=fd)
            except OSError as exc:
                status = exc
            yield fd, name, path, status
    for error in unread:
        path = os.path.relpath(error.filename, folder) if isinstance(error.filename, str) else "?"
        yield -1, "", path, error


class Here:
    """A folder of this machine, looked at and entered by descriptors. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._top = -1

    def __enter__(self) -> Here:
        self._top = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._top)

    @contextlib.contextmanager
    def above(self, steps: Steps, *, make: bool = False) -> Iterator[int]:
        """The open folder that a path is in. make: with the folders that are missing.

        Raises FileNotFoundError, or NotADirectoryError with the path of what is in the way: a file,
        or a link, which is never followed.
        """
        fd = os.dup(self._top)
        try:
            for end, step in enumerate(steps[:-1], start=1):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=fd)
                try:
                    below = os.open(step, FOLDER, dir_fd=fd)
                except FileNotFoundError:
                    raise
                except OSError as exc:
                    in_the_way = "/".join(steps[:end])
                    raise NotADirectoryError(exc.errno, exc.strerror, in_the_way) from exc
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def look(self, steps: Steps) -> Entry | None:
        """What is at a path; None if nothing is. Raises NotADirectoryError as above, OSError."""
        try:
            with self.above(steps) as above:
                return look(above, steps[-1])
        except FileNotFoundError:
            return None

    def read(self, steps: Steps, most: int) -> bytes:
        """The first bytes of a file, one more than `most` if it has more. Raises OSError."""
        with self.above(steps) as above, opened(above, steps[-1]) as file:
            return file.read(most + 1)


def look(above: int, name: str) -> Entry | None:
    """The entry of a name in an open folder; None if there is none. Raises OSError."""
    try:
        return entry_of(above, name, os.lstat(name, dir_fd=above))
    except FileNotFoundError:
        return None
