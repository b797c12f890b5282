"""Records of tree.py back into files.

They come from a store, and once from a box: every path is checked, and no link is followed.
"""

import contextlib
import errno
import os
import stat
import struct
from typing import Iterator, List, Optional, Tuple

from . import tree
from .errors import Refused, shown
from .paths import PLACES, VOLUMES, in_home, in_volume, refusal_at
from .state import STATE_LIMIT, ShellState
from .walk import FOLDER, descend

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_MEMORY = 64 << 20
"""Bytes of a large file that may wait to be written."""
_MAX_BODY = max(tree.SEGMENT + tree.SIZE.size, STATE_LIMIT + 65536)


class Unpacker:
    """Takes records in any pieces. Raises Refused, after which it cannot be used any further."""

    def __init__(self) -> None:
        self.state: Optional[ShellState] = None
        self.seen = tree.Packed()
        self._buffer = bytearray()
        self._folder, self._at = -1, b""
        """The folder of the last record, and its path."""
        self._large, self._large_path = -1, b""
        self._large_info = (0, 0)
        self._part_left = 0
        """Bytes of its last part that are yet to come."""
        self._part_at: Optional[int] = None
        """Where they belong; None: nowhere."""
        self._folders: List[Tuple[bytes, int, int]] = []
        """Paths, modes and times, which are set at the end: whatever is made in them changes
        those."""

    def feed(self, data: bytes) -> None:
        with memoryview(data) as view, view[self._take(view) :] as rest:
            self._buffer += rest
        buffer, at = self._buffer, 0
        try:
            while len(buffer) - at >= tree.RECORD.size:
                kind, mode, size, time_ns, length = tree.RECORD.unpack_from(buffer, at)
                if size > _MAX_BODY:
                    raise _damaged("a record of %d bytes" % size)
                start = at + tree.RECORD.size + length
                end = start + (
                    tree.SIZE.size if kind == tree.PART else size
                )  # A part is written as it comes.
                if len(buffer) < end:
                    break
                path = bytes(buffer[at + tree.RECORD.size : start])
                with memoryview(buffer) as view, view[start:end] as body, _checked(self, path):
                    self._record(kind, path, mode, time_ns, body)
                at = end
                if kind == tree.PART:
                    self._part_left = size - tree.SIZE.size
                    with memoryview(buffer) as view, view[at:] as rest:
                        at += self._take(rest)
        finally:
            del buffer[:at]

    def _take(self, data: memoryview) -> int:
        """Write what belongs to the last part; how much that was."""
        with data[: self._part_left] as mine:
            if mine and self._part_at is not None:
                with _checked(self, self._large_path):
                    tree.write_at(self._large, mine, self._part_at)
                self._part_at += len(mine)
                if len(mine) == self._part_left:
                    _write_back(self._large, self._part_at)
            self._part_left -= len(mine)
            return len(mine)

    def finish(self) -> None:
        if self._buffer or self._part_left:
            raise _damaged("its end is missing")
        self._end_large()
        for path, mode, time_ns in reversed(self._folders):
            try:
                parent, name = self._place(path)
                target = os.open(name or b".", FOLDER, dir_fd=parent)
                try:
                    os.utime(target, ns=(time_ns, time_ns))
                    os.fchmod(target, mode)
                finally:
                    os.close(target)
            except OverflowError as exc:
                raise _damaged("%s: %s" % (shown(os.fsdecode(path)), exc)) from None
            except OSError as exc:
                # The folders of the box itself may belong to somebody else.
                if os.fsdecode(path) not in PLACES:
                    raise self.refused(path, exc) from None
        self.close()

    def refused(self, path: bytes, error: OSError) -> Refused:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return refusal_at(os.fsdecode(path), self._folder, error)
        return _damaged("%s: %s" % (shown(os.fsdecode(path)), os.strerror(error.errno or 0)))

    def close(self) -> None:
        for fd in (self._folder, self._large):
            if fd >= 0:
                os.close(fd)
        self._folder = self._large = -1
        self._at = b""

    def _record(self, kind: bytes, path: bytes, mode: int, time_ns: int, body: memoryview) -> None:
        if kind == tree.STATE:
            cwd, _, text = bytes(body).partition(b"\0")
            self.state = ShellState(text, os.fsdecode(cwd))
            return
        path = os.fsencode(in_home(os.fsdecode(path)))
        self._part_at = None
        if in_volume(os.fsdecode(path)):
            return  # What was there is hidden by the volume, which keeps its own files.
        if kind == tree.PART:
            self._part(path, body)
            return
        self._end_large()
        folder, name = self._place(path)
        if kind == tree.ROOT:
            _clear(folder, os.fsdecode(path))
            self._folders.append((path, mode, time_ns))
        elif kind == tree.GONE and name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        elif not name:
            raise _damaged("%s is a place of the box" % shown(os.fsdecode(path)))
        elif kind == tree.DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=folder)
            self._folders.append((path, mode, time_ns))
            self.seen = self.seen.and_folder()
        elif kind in (tree.REGULAR, tree.LARGE):
            self._file(kind, path, mode, time_ns, body)
        elif kind == tree.SAME:
            self._link(folder, name, bytes(body))
        elif kind == tree.SYMLINK:
            os.symlink(bytes(body), name, dir_fd=folder)
            os.utime(name, ns=(time_ns, time_ns), dir_fd=folder, follow_symlinks=False)
        elif kind == tree.FIFO:
            os.mkfifo(name, 0o600, dir_fd=folder)
            os.chmod(name, mode, dir_fd=folder)
            os.utime(name, ns=(time_ns, time_ns), dir_fd=folder, follow_symlinks=False)
        else:
            raise _damaged("a record of kind %r, of a later version" % kind)

    def _file(self, kind: bytes, path: bytes, mode: int, time_ns: int, body: memoryview) -> None:
        folder, name = self._place(path)
        fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        if kind == tree.LARGE:
            (size,) = tree.SIZE.unpack(body)
            self._large, self._large_path, self._large_info = fd, path, (mode, time_ns)
            os.ftruncate(fd, size)
            self.seen = self.seen.and_file(size)
            return
        try:
            tree.write_at(fd, body, 0)
            _finish(fd, mode, time_ns)
        finally:
            os.close(fd)
        self.seen = self.seen.and_file(len(body))

    def _part(self, path: bytes, body: memoryview) -> None:
        if self._large < 0 or path != self._large_path:
            raise _damaged("bytes of %s without the file" % shown(os.fsdecode(path)))
        (self._part_at,) = tree.SIZE.unpack(body)

    def _end_large(self) -> None:
        if self._large >= 0:
            fd, self._large = self._large, -1
            try:
                _finish(fd, *self._large_info)
            finally:
                os.close(fd)

    def _link(self, folder: int, name: bytes, first: bytes) -> None:
        here = os.dup(folder)
        try:
            source, source_name = self._place(os.fsencode(in_home(os.fsdecode(first))))
            os.link(source_name, name, src_dir_fd=source, dst_dir_fd=here, follow_symlinks=False)
        finally:
            os.close(here)

    def _place(self, path: bytes) -> Tuple[int, bytes]:
        """The open folder of a path, and its name in it; the name of a place is empty."""
        below = [p for p in map(os.fsencode, PLACES) if (path + b"/").startswith(p + b"/")]
        place = below[0] if below else b""
        steps = path[len(place) + 1 :].split(b"/") if len(path) > len(place) else []
        if not place or any(step in (b"", b".", b"..") or b"\0" in step for step in steps):
            raise _damaged("a path %s" % shown(os.fsdecode(path)))
        name = steps.pop() if steps else b""
        parent = b"/".join([place, *steps])
        if parent != self._at or self._folder < 0:
            root = os.open(place, FOLDER)
            try:
                folder = descend(root, os.fsdecode(b"/".join(steps)))
            finally:
                os.close(root)
            if self._folder >= 0:
                os.close(self._folder)
            self._folder, self._at = folder, parent
        return self._folder, name


@contextlib.contextmanager
def _checked(unpacker: Unpacker, path: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise unpacker.refused(path, exc) from None
    except (struct.error, ValueError, OverflowError) as exc:
        raise _damaged("%s: %s" % (shown(os.fsdecode(path)), exc)) from None


def _finish(fd: int, mode: int, time_ns: int) -> None:
    os.utime(fd, ns=(time_ns, time_ns))
    os.fchmod(fd, mode)


def _write_back(fd: int, end: int) -> None:
    """Have the kernel write a large file while it still comes, and forget what it has written: else
    a box with little memory stands still until there is room for more."""
    if end > _IN_MEMORY:
        for start in (end - tree.SEGMENT, end - _IN_MEMORY):
            os.posix_fadvise(fd, start, tree.SEGMENT, os.POSIX_FADV_DONTNEED)


def _clear(folder: int, path: str) -> None:
    """Remove everything in a folder that can be removed, but no volume."""
    for name in os.listdir(folder):
        below = os.path.join(path, name)
        if below in VOLUMES:
            continue
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            os.chmod(name, 0o700, dir_fd=folder)
            inner = os.open(name, FOLDER, dir_fd=folder)
            try:
                _clear(inner, below)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
        except OSError:
            pass  # Something of the box itself, such as a mount.


def _damaged(what: str) -> Refused:
    return Refused("invalid_request", "the tree is damaged: %s" % what)
