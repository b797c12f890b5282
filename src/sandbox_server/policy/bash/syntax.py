"""Syntax tree of bash source, as far as the policy needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Unclear(Exception):
    """The source cannot be parsed: invalid or ambiguous."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class TooMuch(Unclear):
    """Over a limit of the analysis: nesting or work."""


# Words


@dataclass(slots=True)
class Text:
    """Literal text. If unquoted, globs, braces and a tilde in it are active."""

    text: str
    quoted: bool


@dataclass(slots=True)
class Arithmetic:
    """`$((…))`, `((…))` or a subscript: an arithmetic expression."""

    parts: list[Part]
    quoted: bool = True


@dataclass(slots=True)
class Parameter:
    """`$name` or `${…}`."""

    name: str
    quoted: bool
    prefix: Literal["", "!", "#"] = ""
    subscript: str | Arithmetic | None = None
    """`@` or `*`, or an expression."""
    operator: str = ""
    word: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Substitution:
    """`$(…)` and backticks, or a process substitution, which becomes a path."""

    body: Sequence
    quoted: bool
    process: bool = False


Part = Text | Parameter | Substitution | Arithmetic


@dataclass(slots=True)
class Word:
    parts: list[Part]
    start: int
    end: int

    def bare(self) -> str | None:
        """The word's text, or None if any of it is quoted or expanded."""
        if len(self.parts) == 1:
            part = self.parts[0]
            if type(part) is Text and not part.quoted:
                return part.text
        return None


@dataclass(slots=True)
class Assignment:
    name: str
    value: Word | list[Word]
    """A list if it is an array."""
    append: bool = False
    subscript: Arithmetic | None = None


@dataclass(slots=True)
class Redirect:
    operator: str
    target: Word
    """For a heredoc, its body."""


# Commands


@dataclass(slots=True)
class Simple:
    """The unit of every verdict: assignments, words, redirections."""

    text: str
    start: int
    end: int
    assignments: list[Assignment]
    words: list[Word]
    redirects: list[Redirect]


@dataclass(slots=True)
class Pipeline:
    members: list[Node]


class How(StrEnum):
    """When a command in a sequence runs."""

    ALWAYS = "always"
    MAYBE = "maybe"
    """After && or ||."""
    BACKGROUND = "background"


@dataclass(slots=True)
class Sequence:
    """Commands one after another."""

    items: list[tuple[Node, How]]


class Kind(StrEnum):
    GROUP = "group"
    SUBSHELL = "subshell"
    IF = "if"
    LOOP = "loop"
    CASE = "case"
    TEST = "test"
    ARITHMETIC = "arithmetic"


@dataclass(slots=True)
class Compound:
    kind: Kind
    bodies: list[Sequence]
    words: list[Word] = field(default_factory=list)
    variable: str | None = None
    """The loop variable."""
    redirects: list[Redirect] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    name: str
    body: Node
    text: str
    start: int
    end: int


Node = Simple | Pipeline | Compound | Function | Sequence
