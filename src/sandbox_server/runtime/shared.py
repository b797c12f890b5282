"""Boxes that belong to no machine of ours: when a worker is gone, another takes over its boxes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from sandbox_server.runtime.base import Box

_CLAIM_BITS = 48
"""More than an epoch has, which may be a time in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What is written on a box about who has it."""

    owner: str = ""
    """The worker."""
    claims: int = 0
    """How often the box was claimed so far."""
    note: str = ""
    """What its owner has recorded of it, for whoever takes it over."""

    def fence(self, epoch: int) -> int:
        """The epoch for the box's warden of an owner whose lease has this one: higher than that of
        every earlier owner, since leases of different workers cannot be compared."""
        return (self.claims << _CLAIM_BITS) + epoch


class SharedBox(Box):
    """A box on which is written who has it."""

    holding: Holding
    """As this process has last seen it."""

    @abstractmethod
    async def claim(self, owner: str, note: str) -> bool:
        """Give the box to an owner, unless anybody has claimed it since `holding` was seen: of many
        who try, one wins. False for a box that is gone. Raises RuntimeUnavailable."""

    @abstractmethod
    async def write(self, note: str, *, warm: str = "") -> bool:
        """Replace the note, under the same condition. warm: of what an unused box is made."""
