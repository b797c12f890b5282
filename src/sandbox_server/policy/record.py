"""What is noted while a command is looked at, and how much work that was."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.bash.effort import BY_HAND, CHARACTERS, Effort
from sandbox_server.policy.variables import UNKNOWN, Values, Variables

COMMAND = 2
"""The steps that a command counts for whenever it is come by, besides its words."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a command stands: what it reads, who runs it."""

    variables: Variables
    stdin: Values = UNKNOWN
    via: tuple[str, ...] = ()
    place: Place | None = None
    """Of the command whose argument the source was."""

    def wordless(
        self, place: Place, *, assigned: list[str] | None = None, writes: list[str] | None = None
    ) -> Call:
        """A call of nothing, which sets variables or opens files all the same."""
        made = Call(place, [[]], via=self.via, assigned=assigned or [], writes=writes or [])
        made.cwd, made.other_cwds = self.variables.cwd, self.variables.other_cwds
        return made


class Record:
    """Of one command: the calls it would make, the doubts about it, the work spent on it."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.found = Analysis()

    def doubt(self, doubt: Doubt, place: Place, why: str) -> None:
        if (doubt, place, why) not in self.found.doubts[-8:]:
            self.found.doubts.append((doubt, place, why))

    def emit(self, call: Call) -> None:
        """Many rules look at every argument of every call, and longer where it is not known."""
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
        """To go back to, or to change apart."""
        self.effort.spend(2 + (len(variables.values) + len(variables.arrays)) // BY_HAND)
        return variables.copy()

    def apart(self, scope: Scope) -> Scope:
        """In a process of its own."""
        return dataclasses.replace(scope, variables=self.copied(scope.variables))
