"""What is on a copy of a disk, and what differs between two of them: files, and bytes."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.fsmount import mounted_nowhere

Change = Literal["made", "changed", "removed"]
MOST_ENTRIES = 200_000
"""More are not compared: a disk has 100,000 inodes by default."""

_FIEMAP = 0xC020660B
_HEADER = struct.Struct("=QQIIII")
"""struct fiemap: start, length, flags, mapped, count, reserved."""
_EXTENT = struct.Struct("=QQQ2QI3I")
"""struct fiemap_extent: logical, physical, length, reserved, flags, reserved."""
_AT_ONCE = 1000
_LAST = 1


class Entry(NamedTuple):
    kind: int
    mode: int
    size: int
    modified_ns: int
    inode: int
    changed_ns: int
    """When anything of it changed, which nobody in a box can set."""
    target: str
    """Of a link."""


@dataclass(frozen=True, order=True)
class Difference:
    path: str
    """Relative; names that are not UTF-8 are with surrogates."""
    change: Change


@contextlib.contextmanager
def opened(image: Path) -> Iterator[Path]:
    """The files on a copy of a disk. Only root may. Blocks for milliseconds. Raises OSError."""
    with contextlib.ExitStack() as stack:
        with loop_disk.attached_to_read(image) as disk:
            folder = stack.enter_context(mounted_nowhere(disk.device, "ext4", ["ro"]))
        yield folder


def differences(before: Path, after: Path) -> list[Difference]:
    """Between the files in two folders, by path. Blocks. Raises OSError."""
    old, new = entries(before), entries(after)
    found = [Difference(path, "made") for path in new.keys() - old.keys()]
    found += [Difference(path, "removed") for path in old.keys() - new.keys()]
    for path in old.keys() & new.keys():
        if _differs(old[path], new[path], before / path, after / path):
            found.append(Difference(path, "changed"))
    return sorted(found)


def entries(folder: Path) -> Mapping[str, Entry]:
    """Everything in a folder, by path. Raises OSError if that is too much."""
    found: dict[str, Entry] = {}
    todo = [""]
    while todo:
        parent = todo.pop()
        with os.scandir(folder / parent) as there:
            for each in there:
                path = os.path.join(parent, each.name)
                found[path] = entry = _entry(each)
                if entry.kind == stat.S_IFDIR:
                    todo.append(path)
        if len(found) > MOST_ENTRIES:
            raise OSError(f"more than {MOST_ENTRIES} files")
    return found


def _entry(each: os.DirEntry[str]) -> Entry:
    info = each.stat(follow_symlinks=False)
    kind = stat.S_IFMT(info.st_mode)
    return Entry(
        kind=kind,
        mode=stat.S_IMODE(info.st_mode),
        size=info.st_size,
        modified_ns=info.st_mtime_ns,
        inode=info.st_ino,
        changed_ns=info.st_ctime_ns,
        target=os.readlink(each.path) if kind == stat.S_IFLNK else "",
    )


def _differs(old: Entry, new: Entry, before: Path, after: Path) -> bool:
    if (old.kind, old.mode, old.target) != (new.kind, new.mode, new.target):
        return True
    if old.kind != stat.S_IFREG or old == new:
        return False  # The time of a folder changes with what is in it, which is told itself.
    if (old.size, old.modified_ns) != (new.size, new.modified_ns):
        return True
    return not filecmp.cmp(before, after, shallow=False)


class Extent(NamedTuple):
    """A piece of a file, and its place on the disk."""

    start: int
    end: int
    place: int


def added_bytes(file: Path, other: Path) -> int:
    """Bytes of a file that are in other places of the disk than those of the other. Raises
    OSError."""
    mine, theirs = _extents(file), _extents(other)
    return sum(each.end - each.start for each in mine) - _shared(mine, theirs)


def _shared(one: Sequence[Extent], other: Sequence[Extent]) -> int:
    """Bytes that are at the same place in both. They may be cut into pieces differently."""
    shared = first = second = 0
    while first < len(one) and second < len(other):
        a, b = one[first], other[second]
        common = min(a.end, b.end) - max(a.start, b.start)
        if common > 0 and a.place - a.start == b.place - b.start:
            shared += common
        if a.end <= b.end:
            first += 1
        else:
            second += 1
    return shared


def _extents(file: Path) -> list[Extent]:
    """In the order of the file. Raises OSError."""
    found: list[Extent] = []
    start = 0
    with file.open("rb") as opened:
        while True:
            request = bytearray(_HEADER.size + _AT_ONCE * _EXTENT.size)
            _HEADER.pack_into(request, 0, start, (1 << 64) - 1 - start, 0, 0, _AT_ONCE, 0)
            fcntl.ioctl(opened.fileno(), _FIEMAP, request)
            mapped = _HEADER.unpack_from(request)[3]
            for number in range(mapped):
                extent = _EXTENT.unpack_from(request, _HEADER.size + number * _EXTENT.size)
                logical, physical, length, flags = *extent[:3], extent[5]
                start = logical + length
                found.append(Extent(logical, start, physical))
                if flags & _LAST:
                    return found
            if not mapped:
                return found
