"""The work limit of an analysis, counted in steps.

A step is about the cost of one word: some microseconds. Code whose work grows with the command
spends the steps first. So the limit bounds time and memory, and gives the same result everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_server.policy.bash.syntax import TooMuch

MAX_DEPTH = 30
MAX_WORK = 2_000
QUICK_WORK = 100
"""Steps that may run on the event loop, even for a few callers at once: under a millisecond."""
CHARACTERS = 512
"""Characters per step for bulk operations: reading, copying, joining."""
BY_HAND = 16
"""Items per step where Python handles each character or table entry by itself."""


@dataclass(slots=True)
class Effort:
    """Depth and steps so far, shared by all parts of one analysis."""

    limit: int = MAX_WORK
    work: int = 0
    depth: int = 0

    def spend(self, steps: int, position: int = 0) -> None:
        """Raises TooMuch."""
        self.work += steps
        if self.work > self.limit:
            raise TooMuch("the command is too large to analyse", position)

    def enter(self, position: int) -> None:
        """Go one level deeper; the caller decrements `depth` when it leaves. Raises TooMuch."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooMuch("the command is nested too deeply", position)
