"""The files of the box as records, in segments that a store keeps once.

A record is a header, a path and a body. Records come in the order of a walk, and a segment ends
where the name of a path says so, or with 4 MiB: the same files make the same segments wherever
something else has changed. The bytes of a large file are in segments of their own, by offset. What
is packed here is unpacked by unpacking.py, in another box and maybe by a later version.
"""

import errno
import os
import stat
import struct
import zlib
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .errors import refusal
from .files import FILE, capacity, read_at
from .paths import VOLUMES
from .walk import FOLDER, Item, LeftOut, Walk

RECORD = struct.Struct("!cIQqH")
"""Kind, mode, size of the body, time of the last change in ns, length of the path."""
SIZE = struct.Struct("!Q")
STATE = b"S"
"""State of the shell: its body is the folder, a NUL, and what a shell runs to have it."""
ROOT, DIRECTORY, REGULAR, SYMLINK, FIFO = b"R", b"D", b"F", b"L", b"P"
SAME = b"H"
"""Another name of a file: the body is the path of the first."""
LARGE = b"B"
"""A file whose body is its size; its bytes follow, without the holes."""
PART = b"X"
"""Bytes of the last large file: the body is their offset, and they."""
GONE = b"N"
"""No file, if there is one: on a copied disk, one that was being received."""

PIECE = 256 * 1024
SEGMENT = 4 << 20
_LARGE = 1 << 20
_LONGEST_PATH = (1 << 16) - 1
_LAST_NS = (1 << 63) - 1
"""What a record has room for. Folders in folders make longer paths, and some disks later times."""
_CUT = 0xFF
"""A segment has about as many small files."""
_READABLE = 0o500
END = b""
"""In the place of a piece: the segment ends."""


class Packed(NamedTuple):
    """What a packer has seen."""

    files: int = 0
    folders: int = 0
    size: int = 0
    """Bytes of all files, with their holes."""

    def and_file(self, size: int) -> "Packed":
        return Packed(self.files + 1, self.folders, self.size + size)

    def and_folder(self) -> "Packed":
        return self._replace(folders=self.folders + 1)


class Packer:
    """Iterate for the pieces of segments, END after each segment, and None after each slice of
    work. What its owner cannot read is made readable for the moment."""

    def __init__(self, roots: Sequence[str], left_out: LeftOut) -> None:
        self._roots = roots
        self._left_out = left_out
        self._piece = bytearray()
        self._filled = 0
        """Bytes of this segment."""
        self._names: Dict[Tuple[int, int], bytes] = {}
        """The first name of files that have several."""
        self._opened: List[Tuple[str, int]] = []
        """Folders that are open to us only for now, and their modes."""
        self.seen = Packed()

    def __iter__(self) -> Iterator[Optional[bytes]]:
        try:
            for root in self._roots:
                yield from self._root(root)
            yield from self._cut()
        finally:
            for path, mode in reversed(self._opened):
                os.chmod(path, mode)

    def state(self, cwd: str, text: bytes, *, gone: Sequence[str] = ()) -> Iterator[bytes]:
        """A segment with the state of the shell, and the paths of files that are to be removed."""
        for path in gone:
            self._record(GONE, os.fsencode(path), 0, 0)
        self._record(STATE, b"", 0, 0, os.fsencode(cwd) + b"\0" + text)
        return self._cut()

    def _root(self, root: str) -> Iterator[Optional[bytes]]:
        info = os.lstat(root)
        if info.st_mode & _READABLE != _READABLE:
            self._open_up(root, info)
        folder = os.open(root, FOLDER)
        try:
            yield from self._cut()
            self._record(ROOT, os.fsencode(root), info.st_mode, info.st_mtime_ns)
            walk = Walk(
                folder,
                recursive=True,
                left_out=lambda path, why: self._left_out(os.path.join(root, path), why),
                room=None,
                enter=lambda item: self._enter(root, item),
            )
            for item in walk:
                if item is None:
                    yield None
                else:
                    yield from self._item(root, item)
        finally:
            os.close(folder)

    def _enter(self, root: str, item: Item) -> bool:
        """Not into a volume: it stays when the box ends, and does not go back with it."""
        if os.path.join(root, item.path) in VOLUMES:
            return False
        if item.status.st_mode & _READABLE != _READABLE:
            self._open_up(os.path.join(root, item.path), item.status)
        return True

    def _open_up(self, path: str, info: os.stat_result) -> None:
        """What fails is told when it is walked."""
        try:
            os.chmod(path, stat.S_IMODE(info.st_mode) | _READABLE)
            self._opened.append((path, stat.S_IMODE(info.st_mode)))
        except OSError:
            pass

    def _item(self, root: str, item: Item) -> Iterator[Optional[bytes]]:
        path = os.fsencode(os.path.join(root, item.path))
        if len(path) > _LONGEST_PATH:
            self._left_out(os.fsdecode(path), "its path has more than %d bytes" % _LONGEST_PATH)
            return
        try:
            yield from self._entry(path, item)
        except OSError as exc:
            if exc.errno != errno.ENOENT:
                self._left_out(os.fsdecode(path), str(refusal(exc)))
        if zlib.crc32(path) & _CUT == 0 or self._filled >= SEGMENT:
            yield from self._cut()
        elif len(self._piece) >= PIECE:
            yield self._flushed()

    def _entry(self, path: bytes, item: Item) -> Iterator[Optional[bytes]]:
        """Raises OSError before anything of it is packed."""
        info = item.status
        kind, about = stat.S_IFMT(info.st_mode), (info.st_mode, info.st_mtime_ns)
        if kind == stat.S_IFDIR:
            self._record(DIRECTORY, path, *about)
            self.seen = self.seen.and_folder()
        elif kind == stat.S_IFLNK:
            target = os.readlink(os.fsencode(item.name), dir_fd=item.folder)
            self._record(SYMLINK, path, *about, target)
        elif kind == stat.S_IFIFO:
            self._record(FIFO, path, *about)
        elif kind == stat.S_IFREG:
            if info.st_nlink > 1:
                first = self._names.setdefault((info.st_dev, info.st_ino), path)
                if first != path:
                    self._record(SAME, path, *about, first)
                    return
            yield from self._file(path, item)
        else:
            self._left_out(os.fsdecode(path), "it is neither a file, a folder, a link nor a FIFO")

    def _file(self, path: bytes, item: Item) -> Iterator[Optional[bytes]]:
        fd = _open(item)
        try:
            info = os.fstat(fd)
            about = (info.st_mode, info.st_mtime_ns)
            if info.st_size < _LARGE:
                self._record(REGULAR, path, *about, _read(fd, 0, info.st_size))
            else:
                filled = extents(fd, info.st_size)
                yield from self._cut()
                self._record(LARGE, path, *about, SIZE.pack(info.st_size))
                for start, end in filled:
                    yield from self._parts(fd, path, start, end)
                yield from self._cut()
            self.seen = self.seen.and_file(info.st_size)
        finally:
            os.close(fd)

    def _parts(self, fd: int, path: bytes, start: int, end: int) -> Iterator[Optional[bytes]]:
        """The bytes between two offsets, in segments that begin at multiples of their size. Zeros
        at their beginning are left out: gVisor does not tell where holes are."""
        while start < end:
            stop = min(start - start % SEGMENT + SEGMENT, end)
            start = _after_zeros(fd, start, stop)
            if start == stop:
                yield None
                continue
            yield from self._cut()
            self._header(PART, path, 0, 0, SIZE.size + stop - start)
            self._add(SIZE.pack(start))
            for at in range(start, stop, PIECE):
                yield self._flushed(_read(fd, at, min(PIECE, stop - at)))
            start = stop

    def _record(self, kind: bytes, path: bytes, mode: int, time_ns: int, body: bytes = b"") -> None:
        self._header(kind, path, mode, time_ns, len(body))
        self._add(body)

    def _header(self, kind: bytes, path: bytes, mode: int, time_ns: int, size: int) -> None:
        time_ns = min(max(time_ns, -_LAST_NS - 1), _LAST_NS)
        self._add(RECORD.pack(kind, stat.S_IMODE(mode), size, time_ns, len(path)) + path)

    def _add(self, data: bytes) -> None:
        self._piece += data
        self._filled += len(data)

    def _flushed(self, last: bytes = b"") -> bytes:
        """The piece, which ends with `last`. A large one is not copied again if it is alone."""
        self._filled += len(last)
        if not self._piece:
            return last
        piece, self._piece = bytes(self._piece) + last, bytearray()
        return piece

    def _cut(self) -> Iterator[bytes]:
        if self._piece:
            yield self._flushed()
        if self._filled:
            self._filled = 0
            yield END


def _open(item: Item) -> int:
    try:
        return os.open(item.name, FILE, dir_fd=item.folder)
    except PermissionError:
        mode = stat.S_IMODE(item.status.st_mode)
        os.chmod(item.name, mode | 0o400, dir_fd=item.folder)
        try:
            return os.open(item.name, FILE, dir_fd=item.folder)
        finally:
            os.chmod(item.name, mode, dir_fd=item.folder)


def _read(fd: int, offset: int, size: int) -> bytes:
    """Exactly so many bytes: what is truncated meanwhile ends with zeros."""
    data = read_at(fd, size, offset)
    return data + bytes(size - len(data))


def _after_zeros(fd: int, start: int, stop: int) -> int:
    while start < stop and not any(_read(fd, start, 64)):
        size = min(PIECE, stop - start)
        if _read(fd, start, size) != bytes(size):
            break
        start += size
    return start


def write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def extents(fd: int, size: int) -> List[Tuple[int, int]]:
    """Where a file has bytes. Raises OSError if it is larger than its disk and nobody tells where
    its holes are: it would take for ever to read."""
    found: List[Tuple[int, int]] = []
    end = 0
    try:
        while end < size:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            found.append((start, end))
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # Nothing but a hole follows.
            return found
        if size > 2 * capacity(fd):
            raise
        return [(0, size)]
    return found
