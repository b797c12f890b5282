"""Which of several processes of one server has a session. Pure.

A box is labelled for good with the process that made it, `name~2`, and its session belongs to that
process. Where there are fewer processes than at the time, the rest of the division says which of
them has taken over; so the number can change between two starts, and no box is without an owner.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

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
