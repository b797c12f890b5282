"""What is found in a command: the calls it would make, and what is doubtful about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Doubt(StrEnum):
    """What cannot be known before running. A whitelist rejects it, a blacklist tells of it."""

    UNKNOWN_NAME = "unknown-name"
    """Which command it is."""
    UNKNOWN_SCRIPT = "unknown-script"
    """What a shell would be given to run."""
    UNKNOWN_VALUE = "unknown-value"
    """What a value has in it that the shell would evaluate."""
    NOT_PARSED = "not-parsed"
    TOO_MUCH = "too-much"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the command."""

    text: str
    start: int
    end: int


@dataclass(slots=True)
class Call:
    """A simple command that would be run."""

    place: Place
    argvs: list[list[str]]
    """Every way to read its arguments; mostly there is one."""
    via: tuple[str, ...] = ()
    """The commands that would run it, outermost first."""
    assigned: list[str] = field(default_factory=list)
    """The variables it sets, or has in its environment."""
    writes: list[str] = field(default_factory=list)
    """The files it is redirected to."""
    literal: bool = True
    """Whether its name stands in the source."""
    function: bool = False
    """Whether it is surely a function of this source."""
    direct: bool = True
    """Called by the shell, which knows functions, and not by another program."""
    defines: bool = False
    """A definition of a function, and no call."""
    fork_bomb: bool = False
    cwd: str | None = None
    other_cwds: tuple[str | None, ...] = ()
    """Where it may run as well: a cd may fail. None: anywhere."""


@dataclass(slots=True)
class Analysis:
    calls: list[Call] = field(default_factory=list)
    doubts: list[tuple[Doubt, Place, str]] = field(default_factory=list)
    work: int = 0
    """How much was looked at, in words."""
