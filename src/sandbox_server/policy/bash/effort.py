"""How much of a command is looked at: steps are counted, and bounded.

A step is about what one word costs: some microseconds. Whoever does work that grows with what a
command has in it spends steps for it first. So the bound holds for time and for memory alike, and
the same command always gets as far.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_server.policy.bash.syntax import TooMuch

MAX_DEPTH = 30
MAX_WORK = 2_000
QUICK_WORK = 100
"""So many steps hold nobody up, nor do those of a few callers at once: under a millisecond each."""
CHARACTERS = 512
"""So many characters that are read, copied or made count for one step."""
BY_HAND = 16
"""So many where each is looked at by itself, or is an entry in a table."""


@dataclass(slots=True)
class Effort:
    """Shared by all that look at one command: how deep, and how much so far."""

    limit: int = MAX_WORK
    work: int = 0
    depth: int = 0

    def spend(self, steps: int, position: int = 0) -> None:
        """Raises TooMuch."""
        self.work += steps
        if self.work > self.limit:
            raise TooMuch("there is too much in it to look at", position)

    def enter(self, position: int) -> None:
        """One level deeper; whoever leaves it takes one from `depth`. Raises TooMuch."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooMuch("it is nested too deeply", position)
