"""A folder as it came back from a sandbox, which may be malicious: an archive, read with care."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path

from sandbox_sdk.inside import Steps, steps_of
from sandbox_sdk.left_out import take_notice
from sandbox_sdk.mounts.entries import Entry
from sandbox_sdk.protocol.errors import FileTooLarge, InvalidPath

_MAX_NAME = 255
_MAX_DEPTH = 256
_MAX_ENTRIES = 500_000
"""Each takes about a kilobyte of memory here."""


class Returned:
    """The entries of an archive, and the content of its files. Use as a context manager."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        self._unread: set[str] = set()
        self._untold = False
        """Whether more is missing than is told, or not with its whole name."""
        self.entries: dict[str, Entry] = {}
        self.left_out: list[str] = []
        """What is not in it, or not whole, and why."""

    def __enter__(self) -> Returned:
        """Raises InvalidPath for an archive that is broken, or has a path that leads out of it."""
        self._take_notice()
        try:
            self._tar = tarfile.open(self._archive, "r:")
            try:
                self._read()
            except BaseException:
                self._tar.close()
                raise
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as exc:
            raise InvalidPath(f"the folder did not come back whole: {exc}; try again") from exc
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._tar.close()

    def is_unread(self, path: str) -> bool:
        """Whether the sandbox may have something there that is not in the archive, or not whole: it
        must not be taken for removed, or changed."""
        if self._untold and path not in self.entries:
            return True
        steps = path.split("/")
        above = ("/".join(steps[:end]) for end in range(1, len(steps) + 1))
        return bool(self._unread) and any(_printable(each) in self._unread for each in above)

    def content(self, path: str, most: int) -> bytes:
        """The first bytes of a file."""
        source = self._tar.extractfile(self._members[path])
        assert source is not None
        with source:
            return source.read(most)

    def copy(self, path: str, fd: int) -> None:
        """Write a file to a descriptor."""
        source = self._tar.extractfile(self._members[path])
        assert source is not None
        with source, open(fd, "wb", closefd=False) as file:
            while chunk := source.read(1 << 20):
                file.write(chunk)

    def _take_notice(self) -> None:
        """Each line is a path and a reason; both may have a colon in them."""
        self.left_out = take_notice(self._archive)
        for line in self.left_out:
            self._untold |= line.startswith(("…", "and ")) or line.endswith("…")
            parts = line.split(": ")
            self._unread |= {": ".join(parts[:end]) for end in range(1, len(parts))}

    def _read(self) -> None:
        for number, member in enumerate(self._tar):
            if number > _MAX_ENTRIES:
                raise FileTooLarge(f"the folder has more than {_MAX_ENTRIES} files in the sandbox")
            steps = steps_of(member.name)
            if not steps:
                continue
            path = "/".join(steps)
            if member.size < 0:
                raise InvalidPath(f"the folder did not come back whole: {path[:200]!r}; try again")
            entry = self._entry(member)
            if entry is None or not _can_be_here(steps):
                self._unread.add(_printable(path))
                self.left_out.append(f"{path}: not a file, folder or link that can be here")
                continue
            if path in self.entries and self.entries[path].kind != entry.kind:
                raise InvalidPath(f"the folder did not come back whole: {path[:200]!r} is twice")
            self._members[path], self.entries[path] = member, entry
        self._check_parents()

    def _entry(self, member: tarfile.TarInfo) -> Entry | None:
        """None for what is neither a file, a folder nor a link."""
        if member.isdir():
            return Entry("directory")
        if member.issym():
            return Entry("symlink", target=member.linkname)
        if not member.isreg() or member.issparse():
            return None
        digest, source = hashlib.sha256(), self._tar.extractfile(member)
        assert source is not None
        with source:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
        executable = bool(member.mode & 0o100)
        return Entry("file", executable, digest.hexdigest(), size=member.size)

    def _check_parents(self) -> None:
        """What is in something has to be in a folder."""
        for path in list(self.entries):
            parent = path.rpartition("/")[0]
            while parent and parent not in self.entries:
                self.entries[parent] = Entry("directory")
                parent = parent.rpartition("/")[0]
            if parent and self.entries[parent].kind != "directory":
                raise InvalidPath(
                    f"the folder did not come back whole: {path[:200]!r} in no folder"
                )


def _printable(path: str) -> str:
    """As the notice at the end of an archive has it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)


def _can_be_here(steps: Steps) -> bool:
    return len(steps) <= _MAX_DEPTH and all(len(os.fsencode(s)) <= _MAX_NAME for s in steps)
