"""The source text with the reading position."""

from __future__ import annotations

import re

from sandbox_server.policy.bash.effort import CHARACTERS, Effort
from sandbox_server.policy.bash.syntax import Unclear

BLANKS = re.compile(r"(?:[ \t]++|\\\n)++")


class Source:
    """The text, the position and the end of the part being read."""

    def __init__(
        self, text: str, effort: Effort | None = None, *, pinned: tuple[int, int] | None = None
    ) -> None:
        self.text = text
        self.position = 0
        self.end = len(text)
        self.effort = effort or Effort()
        self.pinned = pinned
        """Range of this text in the outer source; positions refer to that one."""

    def unclear(self, why: str) -> Unclear:
        return Unclear(why, self.pinned[0] if self.pinned else self.position)

    def tick(self) -> None:
        self.effort.spend(1, self.position)

    def looking_at(self, text: str, ahead: int = 0) -> bool:
        return self.text.startswith(text, self.position + ahead, self.end)

    def next(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position] if self.position < self.end else ""

    def run(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.position, self.end)
        if found is None:
            return ""
        self.effort.spend((found.end() - self.position) // CHARACTERS, self.position)
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
            raise self.unclear(f"line continuation within an operator after {after}")
