"""Bash source into words: quotes, expansions, substitutions.

Written for judging, not for running: whatever bash could read in two ways is Unclear. Regular
expressions take the long runs of ordinary characters; every step besides is counted and bounded.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from sandbox_server.policy.bash.effort import CHARACTERS, Effort
from sandbox_server.policy.bash.syntax import (
    Part,
    Sequence,
    Substitution,
    Text,
    Unclear,
    Word,
)

BLANKS = re.compile(r"(?:[ \t]++|\\\n)++")
_RUN = re.compile(r"[^ \t\n\\'\"$`;&|<>()]+")
_QUOTED_RUN = re.compile(r'[^"\\$`]+')
_BODY_RUN = re.compile(r"[^\\$`]+")
LONG_TEXT = 1024
"""Text is added to a part up to here, then to a new one: adding to a long one copies it."""


class Lexer(ABC):
    """Reads words from one source. `end` is where the part that is looked at ends."""

    def __init__(
        self, source: str, effort: Effort | None = None, *, pinned: tuple[int, int] | None = None
    ) -> None:
        self.source = source
        self.position = 0
        self.end = len(source)
        self.effort = effort or Effort()
        self.pinned = pinned
        """Where the whole source stands in another one, whose positions count."""

    # Characters

    def unclear(self, why: str) -> Unclear:
        return Unclear(why, self.pinned[0] if self.pinned else self.position)

    def tick(self) -> None:
        self.effort.spend(1, self.position)

    def looking_at(self, text: str, ahead: int = 0) -> bool:
        return self.source.startswith(text, self.position + ahead, self.end)

    def next(self) -> str:
        """The character here; empty at the end."""
        return self.source[self.position] if self.position < self.end else ""

    def run(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.source, self.position, self.end)
        if found is None:
            return ""
        self.effort.spend((found.end() - self.position) // CHARACTERS, self.position)
        self.position = found.end()
        return found[0]

    def skip_blanks(self) -> None:
        found = BLANKS.match(self.source, self.position, self.end)
        if found:
            self.position = found.end()

    def not_split(self, after: str, characters: str) -> None:
        """An operator that a line continuation may cut in two is not worth understanding."""
        at = self.position
        while self.source.startswith("\\\n", at, self.end):
            at += 2
        if at > self.position and at < self.end and self.source[at] in characters:
            raise self.unclear(f"a line continuation within an operator after {after}")

    @abstractmethod
    def substituted(self) -> Sequence:
        """The commands up to a closing parenthesis, which is taken too."""

    @abstractmethod
    def dollar(self, parts: list[Part], *, quoted: bool) -> None:
        """What starts with a dollar sign."""

    @abstractmethod
    def _backticks(self, parts: list[Part], *, quoted: bool) -> None: ...

    # Words

    def word(self) -> Word:
        """The word here. Its parts are empty where there is none."""
        self.tick()
        start = self.position
        parts: list[Part] = []
        while self.position < self.end:
            if text := self.run(_RUN):
                add(parts, text, quoted=False)
                continue
            character = self.source[self.position]
            if character in " \t\n;&|)":
                break
            if character == "(":
                if not _opens_pattern(parts):
                    break
                self._pattern_group(parts)
            elif character in "<>":
                if not self.looking_at("(", 1):
                    break
                self.position += 2
                parts.append(Substitution(self._deeper(), quoted=True, process=True))
            else:
                self._special(character, parts)
        return Word(parts, start, self.position)

    def _special(self, character: str, parts: list[Part]) -> None:
        """A quote, an escape or an expansion outside of quotes."""
        self.tick()
        if character == "\\":
            self._escape(parts)
        elif character == "'":
            parts.append(self._single_quoted())
        elif character == '"':
            self.position += 1
            self._double_quoted(parts)
        elif character == "$":
            self.dollar(parts, quoted=False)
        else:
            self._backticks(parts, quoted=False)

    def _escape(self, parts: list[Part]) -> None:
        following = self.source[self.position + 1 : min(self.position + 2, self.end)]
        self.position += 1 + len(following)
        if following != "\n":
            add(parts, following or "\\", quoted=True)

    def _single_quoted(self) -> Text:
        close = self.source.find("'", self.position + 1, self.end)
        if close < 0:
            raise self.unclear("a single quote is never closed")
        text = self.source[self.position + 1 : close]
        self.position = close + 1
        return Text(text, quoted=True)

    def _double_quoted(self, parts: list[Part]) -> None:
        """After the opening quote. An empty string is a part too: it makes an argument."""
        add(parts, "", quoted=True)
        while self.position < self.end:
            self.tick()
            if text := self.run(_QUOTED_RUN):
                add(parts, text, quoted=True)
                continue
            if self.next() == '"':
                self.position += 1
                return
            self._special_in_quotes(parts, '$`"\\')
        raise self.unclear("a double quote is never closed")

    def _special_in_quotes(self, parts: list[Part], escapable: str) -> None:
        character = self.next()
        if character == "\\":
            following = self.source[self.position + 1 : min(self.position + 2, self.end)]
            self.position += 1 + len(following)
            if following != "\n":
                kept = following if following and following in escapable else "\\" + following
                add(parts, kept, quoted=True)
        elif character == "$":
            self.dollar(parts, quoted=True)
        else:
            self._backticks(parts, quoted=True)

    def heredoc_body(self, start: int, end: int) -> Word:
        """The expansions in an unquoted heredoc, which is everything between two positions."""
        before = self.position, self.end
        self.position, self.end = start, end
        parts: list[Part] = [Text("", quoted=True)]
        while self.position < self.end:
            self.tick()
            if text := self.run(_BODY_RUN):
                add(parts, text, quoted=True)
            else:
                self._special_in_quotes(parts, "$`\\")
        self.position, self.end = before
        return Word(parts, start, end)

    def _pattern_group(self, parts: list[Part]) -> None:
        """`@(a|b)` and its kin: a pattern, whatever stands in it."""
        self.effort.enter(self.position)
        self.position += 1
        add(parts, "(", quoted=False)
        while True:
            inner = self.word()
            parts.extend(inner.parts)
            character = self.next()
            if character not in ("|", ")", "("):
                raise self.unclear("a pattern is never closed")
            if character == "(":
                self._pattern_group(parts)
                continue
            self.position += 1
            add(parts, character, quoted=False)
            if character == ")":
                self.effort.depth -= 1
                return

    def _deeper(self) -> Sequence:
        self.effort.enter(self.position)
        body = self.substituted()
        self.effort.depth -= 1
        return body


def add(parts: list[Part], text: str, *, quoted: bool) -> None:
    """Short neighbours of one kind are one part; an empty quoted one makes an argument."""
    if not text and not quoted:
        return
    if parts:
        last = parts[-1]
        if type(last) is Text and last.quoted == quoted and len(last.text) < LONG_TEXT:
            last.text += text
            return
    parts.append(Text(text, quoted))


def _opens_pattern(parts: list[Part]) -> bool:
    last = parts[-1] if parts else None
    return type(last) is Text and not last.quoted and last.text[-1] in "?*+@!"
