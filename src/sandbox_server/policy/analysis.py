"""What a command would do: the calls it would make, the doubts about it, and the work spent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sandbox_server.policy.bash.source import BY_HAND, CHARACTERS, Effort
from sandbox_server.policy.variables import UNKNOWN, Values, Variables

COMMAND = 2
"""Steps per visit of a command, besides its words."""


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
    """Steps spent (see bash/source.py)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The context of a command: its variables, its stdin, what runs it."""

    variables: Variables
    stdin: Values = UNKNOWN
    via: tuple[str, ...] = ()
    place: Place | None = None
    """Set inside a script argument: the place of the command that got it."""

    def wordless(
        self, place: Place, *, assigned: list[str] | None = None, writes: list[str] | None = None
    ) -> Call:
        """A call without a command, which may still assign variables or open files."""
        made = Call(place, [[]], via=self.via, assigned=assigned or [], writes=writes or [])
        made.cwd, made.other_cwds = self.variables.cwd, self.variables.other_cwds
        return made


class Record:
    """The calls a command would make, the doubts about it, and the work spent."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.found = Analysis()

    def doubt(self, doubt: Doubt, place: Place, why: str) -> None:
        if (doubt, place, why) not in self.found.doubts[-8:]:
            self.found.doubts.append((doubt, place, why))

    def emit(self, call: Call) -> None:
        """Costs steps: many rules check every argument, and an unknown one takes longer."""
        self.found.calls.append(call)
        fields = [field for argv in call.argvs for field in argv]
        unknown = sum(not field.isascii() for field in fields)
        characters = 4 * sum(map(len, fields)) // CHARACTERS
        self.effort.spend(1 + len(fields) // 2 + 4 * unknown + characters)

    @contextlib.contextmanager
    def deeper(self) -> Iterator[None]:
        self.effort.spend(COMMAND)
        self.effort.enter()
        yield
        self.effort.depth -= 1

    def copied(self, variables: Variables) -> Variables:
        """A copy, to restore later or to change independently."""
        self.effort.spend(2 + (len(variables.values) + len(variables.arrays)) // BY_HAND)
        return variables.copy()

    def apart(self, scope: Scope) -> Scope:
        """The scope of a child process: changes to its variables stay there."""
        return dataclasses.replace(scope, variables=self.copied(scope.variables))
