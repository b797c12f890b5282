"""A folder of this machine as tar archives, each small enough to be uploaded."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedReader
from itertools import chain
from pathlib import Path

from sandbox_sdk.mounts.entries import Entry, entry_of, kind_of, opened, walk
from sandbox_sdk.protocol.errors import size_text

PART_BYTES = 32 << 20
_Found = tuple[int, str, str, os.stat_result | OSError]
_OVERHEAD = 64 << 10
"""Most bytes of an archive besides the content of one file."""


class Packing:
    """Fills `entries` and `left_out` while its parts are made."""

    def __init__(self, folder: Path, *, largest: int) -> None:
        """largest: bytes that an upload may have."""
        self.entries: dict[str, Entry] = {}
        self.left_out: list[str] = []
        self._folder = folder
        self._largest = largest - _OVERHEAD
        self._part_bytes = min(PART_BYTES, self._largest)

    def size(self) -> int:
        """Bytes of all files, without reading them. Raises OSError."""
        found = (status for _, _, _, status in walk(self._folder))
        stats = (each for each in found if isinstance(each, os.stat_result))
        return sum(each.st_size for each in stats if kind_of(each) == "file")

    def parts(self, archive: Path) -> Iterator[Path]:
        """The archives one after the other, each in place of the one before. Raises OSError."""
        todo = walk(self._folder)
        more = next(todo, None)
        while True:
            with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
                more = self._fill(tar, more, todo)
            yield archive
            if more is None:
                return

    def _fill(
        self, tar: tarfile.TarFile, found: _Found | None, todo: Iterator[_Found]
    ) -> _Found | None:
        """Returns what did not fit any more; None at the end."""
        for above, name, path, status in chain([found] if found else [], todo):
            if isinstance(status, OSError):
                self._leave_out(path, status.strerror or str(status))
                continue
            if tar.offset and tar.offset + status.st_size > self._part_bytes:
                return above, name, path, status
            try:
                self._add(tar, above, name, path, status)
            except OSError as exc:
                self._leave_out(path, exc.strerror or str(exc))
        return None

    def _leave_out(self, path: str, why: str) -> None:
        self.left_out.append(f"{path}: {why}")

    def _add(
        self, tar: tarfile.TarFile, above: int, name: str, path: str, status: os.stat_result
    ) -> None:
        entry = entry_of(above, name, status, read=False)
        if entry.kind == "other":
            self._leave_out(path, "neither a file, a folder nor a link")
        elif entry.kind != "file":
            tar.addfile(_member(path, entry))
            self.entries[path] = entry
        elif entry.size > self._largest:
            limit = size_text(self._largest + _OVERHEAD)
            self._leave_out(path, f"larger than an upload may be, {limit} (SANDBOX_MAX_UPLOAD)")
        else:
            with opened(above, name) as file:
                content = _Content(file, entry.size)
                tar.addfile(_member(path, entry), content)  # type: ignore[arg-type]
            if content.missing:
                self._leave_out(path, "truncated while it was read; the rest is zeros")
            self.entries[path] = replace(entry, sha256=content.sha256())


def _member(path: str, entry: Entry) -> tarfile.TarInfo:
    """Files belong to the user of the sandbox, whoever owns them here. A folder can be written to
    there, or the next archive could put nothing in it."""
    member = tarfile.TarInfo(path)
    member.uid = member.gid = 1000
    member.mode = entry.mode & 0o777
    member.mtime = entry.mtime_ns / 1e9
    if entry.kind == "directory":
        member.type, member.mode = tarfile.DIRTYPE, member.mode | 0o700
    elif entry.kind == "symlink":
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
    else:
        member.size = entry.size
    return member


class _Content:
    """Exactly `size` bytes of a file, hashed as they are read; one that is shorter by now goes on
    with zeros, as the header of a tar has said its size already."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        self._file = file
        self._left = size
        self._digest = hashlib.sha256()
        self.missing = 0

    def read(self, count: int) -> bytes:
        count = min(count, self._left)
        data = self._file.read(count)
        self.missing += count - len(data)
        data += bytes(count - len(data))
        self._left -= count
        self._digest.update(data)
        return data

    def sha256(self) -> str:
        return self._digest.hexdigest()
