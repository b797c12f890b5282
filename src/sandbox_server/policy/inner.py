"""What a command would run, and the option parsing to find out."""

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
    elsewhere: bool = False
    """In a working directory that is not known."""


@dataclass(frozen=True)
class Script:
    """Bash source."""

    text: str
    here: bool = False
    """Runs in the current shell rather than in a new one."""
    late: bool = False
    """Runs at any later time (trap)."""
    words: bool = False
    """Comes from `env -S`, where `\\_` is a space."""
    file: str | None = None
    """The file its text is read from."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unread:
    """Code that is not analysed: in another language, or in an unknown argument."""

    why: str


Inner = Run | Script | Unread
MAX_FILLED = 256 << 10


def filled(words: list[str], mark: str, text: str) -> list[str]:
    """Replace every `mark` with `text`. If the result is too large, those words become SPLIT."""
    count = sum(word.count(mark) for word in words)
    small = count * len(text) <= MAX_FILLED
    return [
        word if mark not in word else word.replace(mark, text) if small else SPLIT for word in words
    ]


class Options:
    """The options in front of a command, and the rest."""

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
        """Whether a value may be several words, which moves the start of the command."""
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
