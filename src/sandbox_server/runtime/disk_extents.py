"""How much one clone of a file has that another does not."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_FIEMAP = 0xC020660B
_HEADER = struct.Struct("=QQIIII")
"""struct fiemap: start, length, flags, mapped, count, reserved."""
_EXTENT = struct.Struct("=QQQ2QI3I")
"""struct fiemap_extent: logical, physical, length, reserved, flags, reserved."""
_AT_ONCE = 1000
_LAST = 1


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
