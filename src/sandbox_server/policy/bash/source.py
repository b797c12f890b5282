"""The source that is parsed, and the work that its analysis may take."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandbox_server.policy.bash.syntax import TooMuch, Unclear

MAX_DEPTH = 30
MAX_WORK = 2_000
QUICK_WORK = 100
"""Steps that may run on the event loop, even for a few callers at once: under a millisecond."""
CHARACTERS = 512
"""Characters per step for bulk operations: reading, copying, joining."""
BY_HAND = 16
"""Items per step where Python handles each character or table entry by itself."""
BLANKS = re.compile(r"(?:[ \t]++|\\\n)++")


@dataclass(slots=True)
class Effort:
    """Depth and steps so far, shared by all parts of one analysis.

    A step is about the cost of one word: some microseconds. Code whose work grows with the command
    spends the steps first. So the limit bounds time and memory, and is the same everywhere.
    """

    limit: int = MAX_WORK
    work: int = 0
    depth: int = 0

    def spend(self, steps: int) -> None:
        """Raises TooMuch."""
        self.work += steps
        if self.work > self.limit:
            raise TooMuch("the command is too large to analyse")

    def enter(self) -> None:
        """Go one level deeper; the caller decrements `depth` when it leaves. Raises TooMuch."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooMuch("the command is nested too deeply")


class Source:
    """The text, the position and the end of the part being read."""

    def __init__(self, text: str, effort: Effort, *, pinned: tuple[int, int] | None = None) -> None:
        self.text = text
        self.position = 0
        self.end = len(text)
        self.effort = effort
        self.pinned = pinned
        """Range of this text in the outer source; positions refer to that one."""

    def tick(self) -> None:
        self.effort.spend(1)

    def looking_at(self, text: str, ahead: int = 0) -> bool:
        return self.text.startswith(text, self.position + ahead, self.end)

    def take(self, text: str) -> bool:
        """Whether this is next; then it is passed."""
        found = self.looking_at(text)
        self.position += len(text) if found else 0
        return found

    def next(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position] if self.position < self.end else ""

    def run(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.position, self.end)
        if found is None:
            return ""
        self.effort.spend((found.end() - self.position) // CHARACTERS)
        self.position = found.end()
        return found[0]

    def skip_blanks(self) -> None:
        found = BLANKS.match(self.text, self.position, self.end)
        if found:
            self.position = found.end()

    def not_split(self, after: str, characters: str) -> None:
        """Reject an operator split by a line continuation, instead of supporting it."""
        at = self.position
        while self.text.startswith("\\\n", at, self.end):
            at += 2
        if at > self.position and at < self.end and self.text[at] in characters:
            raise Unclear(f"line continuation within an operator after {after}")
