"""A folder as a tar. What had to be left out is listed in a file at its end."""

import os
import stat
from typing import Any, Iterator, List, Optional

from .errors import refusal
from .files import FILE, capacity, file_chunks
from .frames import CHUNK
from .walk import Item, Walk

NOTICE = "LEFT-OUT-BY-SANDBOX.txt"
_MAX_REPORTED = 200
_LONGEST_TOLD = 300
_MOST = 4
"""Largest tar, as a multiple of the disk's size: sparse files and hard links can make it larger
than the disk."""


class Tar:
    """Iterate for the bytes of the archive, with None after each slice of work.

    Raises Refused if a folder has too many names to walk, since the archive would silently lack
    files.
    """

    def __init__(self, root: int) -> None:
        import tarfile  # Imported late to save memory.

        self._info = tarfile.TarInfo
        self._types = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}
        self._root = root
        self._reported: List[str] = []
        self._unreported = 0
        self._room = _MOST * capacity(root)

    def __iter__(self) -> Iterator[Optional[bytes]]:
        """In pieces of about a frame."""
        piece = bytearray()
        for data in self._blocks():
            if data is None:
                yield None
                continue
            piece += data
            if len(piece) >= CHUNK // 2:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)

    def _blocks(self) -> Iterator[Optional[bytes]]:
        for item in Walk(self._root, recursive=True, left_out=self._left_out, room=None):
            if item is None:
                yield None
            else:
                yield from self._member(item)
        if self._reported:
            yield from self._notice()
        yield bytes(1024)

    def _left_out(self, path: str, why: str) -> None:
        if len(self._reported) < _MAX_REPORTED:
            self._reported.append("%s: %s" % (_printable(path), why))
        else:
            self._unreported += 1

    def _member(self, item: Item) -> Iterator[bytes]:
        kind = stat.S_IFMT(item.status.st_mode)
        member = self._info(item.path)
        member.mode, member.mtime = stat.S_IMODE(item.status.st_mode), int(item.status.st_mtime)
        member.uid = member.gid = 1000
        if kind == stat.S_IFREG:
            yield from self._file(member, item)
        elif kind in self._types:
            member.type = self._types[kind]
            if kind == stat.S_IFLNK:
                try:
                    member.linkname = os.readlink(item.name, dir_fd=item.folder)
                except OSError as exc:
                    self._left_out(item.path, str(refusal(exc)))
                    return
            yield _header(member)
        else:
            self._left_out(item.path, "it is neither a file, a folder nor a link")

    def _file(self, member: Any, item: Item) -> Iterator[bytes]:
        try:
            fd = os.open(item.name, FILE, dir_fd=item.folder)
        except OSError as exc:
            self._left_out(item.path, str(refusal(exc)))
            return
        try:
            member.size = os.fstat(fd).st_size
            if not member.size and _has_bytes(fd):
                self._left_out(item.path, "its size is not known before it is read")
                return
            if member.size > self._room:
                self._left_out(item.path, "the archive would be %d times the disk" % _MOST)
                return
            self._room -= member.size
            yield _header(member)
            yield from self._content(fd, member.size, item.path)
            if member.size % 512:
                yield bytes(-member.size % 512)
        finally:
            os.close(fd)

    def _content(self, fd: int, size: int, path: str) -> Iterator[bytes]:
        """Exactly the size in the header: a truncated file is padded with zeros."""
        left, why = size, "truncated while it was read; the rest is zeros"
        try:
            for data in file_chunks(fd, size):
                left -= len(data)
                yield data
        except OSError as exc:
            why = "%s; the rest is zeros" % refusal(exc)
        if left:
            self._left_out(path, why)
        while left:
            data = bytes(min(left, CHUNK))
            left -= len(data)
            yield data

    def _notice(self) -> Iterator[bytes]:
        more = ["and %d more" % self._unreported] if self._unreported else []
        lines = ["Left out of this archive, or incomplete in it:", "", *self._reported, *more, ""]
        text = "\n".join(lines).encode()
        member = self._info(NOTICE)
        member.size, member.mtime = len(text), int(os.fstat(self._root).st_mtime)
        member.uid = member.gid = 1000
        yield _header(member)
        yield text
        yield bytes(-len(text) % 512)


def _has_bytes(fd: int) -> bool:
    """Also if they cannot be read."""
    try:
        return bool(os.pread(fd, 1, 0))
    except OSError:
        return True


def _header(member: Any) -> bytes:
    data: bytes = member.tobuf(errors="surrogateescape")
    return data


def _printable(path: str) -> str:
    """On one line, encodable, and shortened."""
    if len(path) > _LONGEST_TOLD:
        path = "…" + path[-_LONGEST_TOLD:]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
