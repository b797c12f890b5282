"""Numbers by name in memory that the processes of a server share after a fork.

A name has a row, found by its digest, with a column for each process. Two processes that write the
same number at once may lose one of the writes: a limit is then off by one call.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b

_ROWS = 4096
_LOOKS = 32


class SharedNumbers:
    """Make it before the fork. With more names than rows, the oldest are forgotten."""

    def __init__(self, columns: int = 1) -> None:
        self._columns = columns
        self._names = memoryview(mmap.mmap(-1, 8 * _ROWS)).cast("Q")
        self._numbers = memoryview(mmap.mmap(-1, 8 * _ROWS * columns)).cast("d")

    def get(self, name: str, column: int = 0) -> float:
        return self._numbers[self._row(name) * self._columns + column]

    def put(self, name: str, number: float, column: int = 0) -> None:
        self._numbers[self._row(name) * self._columns + column] = number

    def total(self, name: str) -> float:
        start = self._row(name) * self._columns
        return sum(self._numbers[start : start + self._columns])

    def clear(self, column: int) -> None:
        """Of a process that begins."""
        for row in range(_ROWS):
            if self._names[row]:
                self._numbers[row * self._columns + column] = 0.0

    def _row(self, name: str) -> int:
        digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1
        first = least = digest % _ROWS
        for step in range(_LOOKS):
            row = (first + step) % _ROWS
            if self._names[row] == digest:
                return row
            if self._names[row] == 0:
                self._names[row] = digest
                return row
            if self._sum(row) < self._sum(least):
                least = row
        self._names[least] = digest
        for column in range(self._columns):
            self._numbers[least * self._columns + column] = 0.0
        return least

    def _sum(self, row: int) -> float:
        start = row * self._columns
        return sum(self._numbers[start : start + self._columns])
