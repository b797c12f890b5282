"""Result of an analysis: the calls a command would make, and the doubts about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Doubt(StrEnum):
    """What cannot be known before running. A whitelist rejects it, a blacklist only reports it."""

    UNKNOWN_NAME = "unknown-name"
    """The name of the command."""
    UNKNOWN_SCRIPT = "unknown-script"
    """The script a shell would run."""
    UNKNOWN_VALUE = "unknown-value"
    """A value that the shell evaluates, and that may therefore run a command."""
    NOT_PARSED = "not-parsed"
    TOO_MUCH = "too-much"


@dataclass(frozen=True, slots=True)
class Place:
    """A range of the command's text."""

    text: str
    start: int
    end: int


@dataclass(slots=True)
class Call:
    """A simple command that would be run."""

    place: Place
    argvs: list[list[str]]
    """Every possible argv; usually one."""
    via: tuple[str, ...] = ()
    """The commands that would run it, outermost first."""
    assigned: list[str] = field(default_factory=list)
    """Names of the variables it assigns or gets in its environment."""
    writes: list[str] = field(default_factory=list)
    """Files its output is redirected to."""
    literal: bool = True
    """Whether its name is written out in the source."""
    function: bool = False
    """Whether it is certainly a function defined in this source."""
    direct: bool = True
    """Called by the shell, which knows functions, rather than by another program."""
    defines: bool = False
    """A function definition, not a call."""
    fork_bomb: bool = False
    cwd: str | None = None
    other_cwds: tuple[str | None, ...] = ()
    """Other possible working directories, since a cd may fail. None means any."""


@dataclass(slots=True)
class Analysis:
    calls: list[Call] = field(default_factory=list)
    doubts: list[tuple[Doubt, Place, str]] = field(default_factory=list)
    work: int = 0
    """Steps spent (see bash/effort.py)."""
