"""A folder as a tar. What cannot be in it is named in a file at its end."""

import os
import stat
from typing import Any, Iterator, List, Optional

from .errors import refusal
from .files import FILE, capacity, file_chunks
from .frames import CHUNK
from .walk import Item, Walk

NOTICE = "LEFT-OUT-BY-SANDBOX.txt"
_MAX_TOLD = 200
_LONGEST_TOLD = 300
_MOST = 4
"""Files with holes and files with many names make a tar larger than the disk they are on. How many
times as large it may be."""


class Tar:
    """Use as an iterator: the bytes of the archive, and None wherever others may have their turn.

    Raises Refused where a folder has more in it than can be walked: an archive that lacks any
    number of files does not look whole.
    """

    def __init__(self, root: int) -> None:
        import tarfile  # Only boxes that need it pay for it.

        self._info = tarfile.TarInfo
        self._types = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}
        self._root = root
        self._told: List[str] = []
        self._untold = 0
        self._room = _MOST * capacity(root)

    def __iter__(self) -> Iterator[Optional[bytes]]:
        """In pieces that are worth a frame."""
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
        if self._told:
            yield from self._notice()
        yield bytes(1024)

    def _left_out(self, path: str, why: str) -> None:
        if len(self._told) < _MAX_TOLD:
            self._told.append("%s: %s" % (_printable(path), why))
        else:
            self._untold += 1

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
        """All of what the header has promised: one that has become shorter is filled up."""
        left, why = size, "became shorter while it was read; the rest is zeros"
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
        more = ["and %d more" % self._untold] if self._untold else []
        lines = ["Left out of this archive, or not whole in it:", "", *self._told, *more, ""]
        text = "\n".join(lines).encode()
        member = self._info(NOTICE)
        member.size, member.mtime = len(text), int(os.fstat(self._root).st_mtime)
        member.uid = member.gid = 1000
        yield _header(member)
        yield text
        yield bytes(-len(text) % 512)


def _header(member: Any) -> bytes:
    data: bytes = member.tobuf(errors="surrogateescape")
    return data


def _printable(path: str) -> str:
    """On one line, encodable, and not of any length."""
    if len(path) > _LONGEST_TOLD:
        path = "…" + path[-_LONGEST_TOLD:]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
