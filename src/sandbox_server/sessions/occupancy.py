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


class _Number:
    """One of the numbers of our own process."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __get__(self, of: Occupancy, _: type[Occupancy]) -> int:
        return of.counts[of.at + self._offset]

    def __set__(self, of: Occupancy, number: int) -> None:
        of.counts[of.at + self._offset] = number


class Occupancy:
    """How many sessions the machine has and may have, and how much memory they are promised.
    Written by the table, read by the pool.

    counts: of all processes of the server; ours are those of `index`. memory: what all sessions
    may be promised together, None for no limit.
    """

    live = _Number(0)
    making = _Number(1)
    promised = _Number(2)

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
        self.counts: Numbers = [0] * _EACH if counts is None else counts
        self.at = _EACH * index
        self.making = 0

    @property
    def room(self) -> int:
        """Beside the live sessions of all processes."""
        return max(self.capacity - sum(self.counts[::_EACH]), 0)

    @property
    def free(self) -> int:
        """Beside those that are being made, too."""
        begun = sum(self.counts[::_EACH]) + sum(self.counts[1::_EACH])
        return max(self.capacity - begun, 0)

    @property
    def memory_left(self) -> int | None:
        """None for no limit."""
        if self.memory is None:
            return None
        return max(self.memory - sum(self.counts[2::_EACH]), 0)
