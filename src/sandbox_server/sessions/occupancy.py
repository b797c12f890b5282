"""How full the machine is, counted over all processes of a server."""

from __future__ import annotations

import mmap
from typing import TypeAlias

Numbers: TypeAlias = "list[int] | memoryview[int]"
_EACH = 3
"""Numbers of a process: live sessions, sessions that are being made, bytes of memory promised."""


def shared_counts(processes: int) -> memoryview[int]:
    """The numbers of so many processes, in memory that they share after a fork."""
    return memoryview(mmap.mmap(-1, 8 * _EACH * processes)).cast("q")


class Occupancy:
    """How many sessions the machine has and may have, and how much memory they are promised.
    Written by the table, read by the pool.

    counts: of all processes of the server; ours are those of `index`. memory: what all sessions
    may be promised together, None for no limit.
    """

    def __init__(
        self,
        capacity: int,
        counts: Numbers | None = None,
        *,
        index: int = 0,
        memory: int | None = None,
    ) -> None:
        self.capacity = capacity
        self.memory = memory
        self._counts: Numbers = [0] * _EACH if counts is None else counts
        self._at = _EACH * index
        self.making = 0

    @property
    def live(self) -> int:
        return self._counts[self._at]

    @live.setter
    def live(self, number: int) -> None:
        self._counts[self._at] = number

    @property
    def making(self) -> int:
        return self._counts[self._at + 1]

    @making.setter
    def making(self, number: int) -> None:
        self._counts[self._at + 1] = number

    @property
    def promised(self) -> int:
        return self._counts[self._at + 2]

    @promised.setter
    def promised(self, number: int) -> None:
        self._counts[self._at + 2] = number

    @property
    def room(self) -> int:
        """Beside the live sessions of all processes."""
        return max(self.capacity - sum(self._counts[::_EACH]), 0)

    @property
    def free(self) -> int:
        """Beside those that are being made, too."""
        begun = sum(self._counts[::_EACH]) + sum(self._counts[1::_EACH])
        return max(self.capacity - begun, 0)

    @property
    def memory_left(self) -> int | None:
        """None for no limit."""
        if self.memory is None:
            return None
        return max(self.memory - sum(self._counts[2::_EACH]), 0)
