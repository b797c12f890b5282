"""What a command would run, and how its options are read to find out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sandbox_server.policy.fields import SPLIT


@dataclass(frozen=True)
class Run:
    """Another command."""

    argv: list[str]
    assigned: list[str] = field(default_factory=list)
    """`NAME=value` in its environment."""


@dataclass(frozen=True)
class Script:
    """Bash source."""

    text: str
    here: bool = False
    """In this shell, not in one of its own."""
    late: bool = False
    """At any time from here on."""
    words: bool = False
    """Only split into words, not read as commands."""
    file: str | None = None
    """Where its text is to come from."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unread:
    """Something in another language, or in an argument that is not known."""

    why: str


Inner = Run | Script | Unread
MAX_FILLED = 256 << 10


def filled(words: list[str], mark: str, text: str) -> list[str]:
    """The words with a text in place of every mark; too large to be known, and then SPLIT."""
    count = sum(word.count(mark) for word in words)
    small = count * len(text) <= MAX_FILLED
    return [
        word if mark not in word else word.replace(mark, text) if small else SPLIT for word in words
    ]


class Options:
    """The options in front of a command, and the words behind them."""

    def __init__(self, words: list[str], *, valued: str, long_valued: tuple[str, ...]) -> None:
        self.found: list[tuple[str, str]] = []
        self.rest: list[str] = []
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--":
                index += 1
                break
            if word.startswith("--"):
                index += self._long(words, index, long_valued)
            elif word.startswith("-") and len(word) > 1:
                index += self._short(words, index, valued)
            else:
                break
        self.rest = words[index:]

    @property
    def unsure(self) -> bool:
        """Whether a value may be several words, so that the command starts elsewhere."""
        return any(SPLIT in value for _, value in self.found)

    def value(self, *names: str) -> str | None:
        return next((value for name, value in self.found if name in names), None)

    def _long(self, words: list[str], index: int, valued: tuple[str, ...]) -> int:
        name, equals, value = words[index].partition("=")
        if equals:
            self.found.append((name, value))
            return 1
        full = next((v for v in valued if v.startswith(name)), None)
        if full is None:
            self.found.append((name, ""))
            return 1
        self.found.append((full, words[index + 1] if index + 1 < len(words) else SPLIT))
        return 2

    def _short(self, words: list[str], index: int, valued: str) -> int:
        letters = words[index][1:]
        if re.fullmatch(r"[0-9]+", letters):
            return 1
        for at, letter in enumerate(letters):
            if letter in valued:
                if value := letters[at + 1 :]:
                    self.found.append((f"-{letter}", value))
                    return 1
                following = words[index + 1] if index + 1 < len(words) else SPLIT
                self.found.append((f"-{letter}", following))
                return 2
            self.found.append((f"-{letter}", ""))
        self.found.append((words[index], ""))
        return 1
