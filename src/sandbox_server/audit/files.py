"""The files of one chain: the one that is written, rotated ones, and the head.

    audit.log                    the newest lines
    audit.log.000000000001       rotated, named by the number of its first line
    audit.log.head               the number and hash of the last line, replaced as a whole
    audit.log.lock               held by the process that writes

A second process that is given the same path has a chain of its own, in audit.log~1 and so on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from sandbox_server.audit import chain
from sandbox_server.audit.chain import Head
from sandbox_server.private import lock_file, unlock_file

log = structlog.get_logger()

MOST_WRITERS = 256
LONGEST_LINE = 1 << 20
"""More than any line has: a command's text is cut."""
_ROTATED = re.compile(r"\.\d{12}")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def head_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def rotated_files(path: Path) -> list[Path]:
    """Those of the file at `path`, oldest first."""
    return sorted(
        each
        for each in path.parent.glob(f"{path.name}.*")
        if _ROTATED.fullmatch(each.name.removeprefix(path.name))
    )


def writers_of(path: Path) -> list[Path]:
    """The files at `path` and beside it that processes have written, each a chain of its own."""
    beside = [path.with_name(f"{path.name}~{number}") for number in range(1, MOST_WRITERS)]
    return [each for each in (path, *beside) if head_path(each).exists() or each.exists()]


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[Path]:
    """A file that no other process writes. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MOST_WRITERS):
        mine = path if not number else path.with_name(f"{path.name}~{number}")
        try:
            fd = lock_file(mine.with_name(f"{mine.name}.lock"))
        except BlockingIOError:
            continue
        try:
            yield mine
        finally:
            unlock_file(fd)
        return
    raise BlockingIOError(f"{MOST_WRITERS} processes write to it")


@dataclass(frozen=True)
class KeptHead:
    """What the head file says."""

    head: Head
    first: int
    """The number of the oldest line that is kept."""


def read_head(path: Path) -> KeptHead | None:
    """That of the file at `path`; None if there is none that can be read."""
    try:
        said = json.loads(head_path(path).read_text())
        return KeptHead(Head(said["chain"], int(said["seq"]), said["hash"]), int(said["first"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class ChainFiles:
    """Appends records. Any method raises OSError; what is whole in the file stays so. Not for use
    by several threads at once."""

    def __init__(self, path: Path, *, size: int, count: int) -> None:
        """size: of a file before the next begins. count: of rotated ones that are kept."""
        self.path = path
        self._size = size
        self._count = count
        self._fd: int | None = None
        self.head = Head("")
        self._first = 1
        self._written = 0
        self._left = 0
        """How many records of a failed write are in the file nevertheless."""
        self.open()

    def open(self) -> None:
        """Go on after the last whole line, and tell of what is not whole."""
        self._open()
        kept, (last, torn) = read_head(self.path), self._last_line()
        found = chain.parse(last)
        if last and found is None and kept is None:  # Of a version without hashes.
            self._put_aside()
            last, torn, found = b"", b"", None
        self._first = kept.first if kept else 1
        if found is not None and found["chain"] == self.head.chain:
            self._left = found["seq"] - self.head.seq
        if found is not None:
            self.head = chain.head_of(found)
        elif kept is not None:
            self.head = kept.head
        else:
            self.head = Head(secrets.token_hex(8))
        told = list(self._told(kept, torn))
        if not self.head.seq:
            told.append({"at": now(), "kind": "begin"})
        if torn:
            self._write(b"\n")
        if told:
            self._append(told)
        self.settle()
        log.info("audit.head", file=str(self.path), seq=self.head.seq, hash=self.head.hash)

    def _told(self, kept: KeptHead | None, torn: bytes) -> Iterator[dict[str, Any]]:
        """Records of what was found wrong."""
        if torn:
            log.warning("audit.torn", file=str(self.path), bytes=len(torn))
            yield chain.torn_record(torn, now())
        if kept is not None and kept.head.chain == self.head.chain:
            missing = kept.head.seq - self.head.seq
            if missing > 0:
                log.error("audit.tail_missing", file=str(self.path), lines=missing,
                          after=self.head.seq)  # fmt: skip
                # Goes on after the missing lines, so that a check always finds them missing.
                found, self.head = self.head.seq, kept.head
                yield {"at": now(), "kind": "tail_missing", "after": found, "lines": missing}

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write all of them. After an OSError none counts as written: pass the same again."""
        if self._fd is None:
            self.open()
        elif self._was_moved():
            self.close()
            self._open()
        left, self._left = self._left, 0
        self._append(records[left:])

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        head, lines = self.head, []
        for record in records:
            line, head = head.next(record)
            lines.append(line)
        self._write(b"\n".join([*lines, b""]))
        self.head = head

    def settle(self) -> None:
        """Rotate a file that is large enough, and keep the head of what was written."""
        self._keep_head()
        if self.is_large:
            self._rotate()
            self._keep_head()

    @property
    def is_large(self) -> bool:
        return self._written > self._size

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        start = os.fstat(self._fd).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, start)
            self.close()  # Opened again before the next write, which finds what is left of this.
            raise
        self._written = start + len(data)

    def _rotate(self) -> None:
        """Begin the next file. The head names the oldest line before older ones are removed."""
        assert self._fd is not None
        os.fsync(self._fd)
        self.path.rename(self.path.with_name(f"{self.path.name}.{self._first_in_file():012}"))
        self.close()
        self._open()
        log.info("audit.rotated", file=str(self.path), seq=self.head.seq, hash=self.head.hash)
        rotated = rotated_files(self.path)
        surplus = rotated[: max(len(rotated) - self._count, 0)]
        if surplus:
            kept = rotated[len(surplus) :]
            self._first = int(kept[0].name[-12:]) if kept else self.head.seq + 1
            self._keep_head()
            for each in surplus:
                each.unlink(missing_ok=True)

    def _first_in_file(self) -> int:
        with self.path.open("rb") as file:
            fields = chain.parse(file.readline(LONGEST_LINE).rstrip(b"\n"))
        return self.head.seq if fields is None else int(fields["seq"])

    def _keep_head(self) -> None:
        """Replace the head file. Not synced to the disk: after a loss of power it may be old."""
        target = head_path(self.path)
        said = {**vars(self.head), "first": self._first, "at": now()}
        new = target.with_name(f"{target.name}.new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(said).encode())
        finally:
            os.close(fd)
        new.replace(target)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        # An existing file may be meant for a group, so keep its group permissions.
        if stat.S_ISREG(mode := os.fstat(fd).st_mode) and mode & 0o007:
            os.fchmod(fd, stat.S_IMODE(mode) & 0o770)
        self._fd = fd
        self._written = os.fstat(fd).st_size

    def _was_moved(self) -> bool:
        """Whether somebody else has rotated the file away."""
        assert self._fd is not None
        try:
            there, ours = self.path.stat(), os.fstat(self._fd)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _last_line(self) -> tuple[bytes, bytes]:
        """The last whole line, and the unfinished one after it."""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        start = max(size - 2 * LONGEST_LINE, 0)
        tail = os.pread(self._fd, size - start, start)
        whole, _, torn = tail.rpartition(b"\n")
        if torn and chain.parse(torn) is not None:  # All but its line feed.
            self._write(b"\n")
            return torn, b""
        for line in reversed(whole.split(b"\n")):
            if chain.parse(line) is not None:
                return line, torn
        return whole.rpartition(b"\n")[2], torn

    def _put_aside(self) -> None:
        """A file without hashes stays as it is, under another name."""
        number = 0
        while (aside := self.path.with_name(f"{self.path.name}.unchained{number or ''}")).exists():
            number += 1
        self.close()
        self.path.rename(aside)
        log.warning("audit.unchained", file=str(self.path), moved_to=str(aside))
        self._open()
