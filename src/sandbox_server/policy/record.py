"""What an analysis has found so far, and the work spent on it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.bash.effort import BY_HAND, CHARACTERS, Effort
from sandbox_server.policy.variables import UNKNOWN, Values, Variables

COMMAND = 2
"""Steps per visit of a command, besides its words."""


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
        self.effort.spend(1 + len(fields) // 2 + 4 * unknown + characters, call.place.start)

    @contextlib.contextmanager
    def deeper(self, position: int) -> Iterator[None]:
        self.effort.spend(COMMAND, position)
        self.effort.enter(position)
        yield
        self.effort.depth -= 1

    def copied(self, variables: Variables) -> Variables:
        """A copy, to restore later or to change independently."""
        self.effort.spend(2 + (len(variables.values) + len(variables.arrays)) // BY_HAND)
        return variables.copy()

    def apart(self, scope: Scope) -> Scope:
        """The scope of a child process: changes to its variables stay there."""
        return dataclasses.replace(scope, variables=self.copied(scope.variables))
