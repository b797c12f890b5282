"""What the processes of one server share: which of them has a session, and how full the machine is.

A box is labelled for good with the process that made it, `name~2`, and its session belongs to that
process. Where there are fewer processes than at the time, the rest of the division says which of
them has taken over; so the number can change between two starts, and no box is without an owner.
"""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from typing import TypeAlias

Numbers: TypeAlias = "list[int] | memoryview[int]"
_EACH = 3
"""Numbers of a process: live sessions, sessions that are being made, bytes of memory promised."""
_MARK = "~"
"""Not allowed in a worker_id, so no other server has such a name."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The sessions of process `index` out of `count`; of all, where there is one process."""

    name: str
    """Of the server."""
    index: int = 0
    count: int = 1

    @property
    def owner(self) -> str:
        """The label of new boxes and sessions."""
        return self.name if self.count == 1 else f"{self.name}{_MARK}{self.index}"

    def has(self, owner: str) -> bool:
        """Whether boxes and sessions with this label are in this share."""
        return self.process_of(owner) == self.index

    def process_of(self, owner: str) -> int:
        """The process that has the boxes and sessions with this label."""
        _, _, made_by = owner.rpartition(_MARK) if _MARK in owner else ("", "", "0")
        return int(made_by) % self.count

    def begins_at(self, tenant: str, thread_id: str) -> int:
        """The only process that may begin a session of this thread."""
        digest = hashlib.blake2b(f"{tenant}\0{thread_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % self.count

    def of(self, index: int) -> Share:
        """The share of another process."""
        return Share(name=self.name, index=index, count=self.count)


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
