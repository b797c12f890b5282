"""What commands read and print, as far as it can be told, and what is noted on the way."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.bash.effort import BY_HAND, CHARACTERS, Effort
from sandbox_server.policy.bash.syntax import (
    Compound,
    Kind,
    Node,
    Part,
    Pipeline,
    Redirect,
    Sequence,
    Simple,
    Substitution,
    TooMuch,
    Word,
)
from sandbox_server.policy.expand import expand, expand_one, product
from sandbox_server.policy.fields import NAME, HOLE
from sandbox_server.policy.outputs import NO_INPUT, cost, output
from sandbox_server.policy.variables import UNKNOWN, Values, Variables

PROCESSES = 0xE100
"""Characters for private use, which name process substitutions."""
MAX_PROCESSES = 1000
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


class Streams(ABC):
    """One look at one command: what was found so far, and how much work it was."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.found = Analysis()
        self.processes: dict[str, Values] = {}
        """What process substitutions print, by the path they stand for."""

    @abstractmethod
    def parts(self, parts: list[Part], scope: Scope, place: Place) -> None:
        """What runs while words are expanded."""

    def redirected(self, redirects: list[Redirect], scope: Scope, place: Place) -> list[str]:
        """The files that are written."""
        writes: list[str] = []
        for redirect in redirects:
            self.parts(redirect.target.parts, scope, place)
            if redirect.operator[0] in ">&" or redirect.operator == "<>":
                values = expand_one(redirect.target, scope.variables, self.outputs(scope))
                writes.extend(values.alternatives(HOLE))
        return writes

    def input_of(self, redirects: list[Redirect], scope: Scope) -> Values:
        """What stands to be read."""
        stdin = scope.stdin
        for redirect in redirects:
            if redirect.operator == "<<<":
                given = expand_one(redirect.target, scope.variables, self.outputs(scope))
                stdin = Values(tuple(text + "\n" for text in given.texts), given.complete)
            elif redirect.operator in ("<<", "<<-"):
                stdin = expand_one(redirect.target, scope.variables, self.outputs(scope))
            elif redirect.operator == "<":
                stdin = self._read(redirect.target, scope)
        return stdin

    def _read(self, target: Word, scope: Scope) -> Values:
        for part in target.parts:
            if isinstance(part, Substitution) and part.process:
                return self.printed(part.body, scope)
        return UNKNOWN

    def printed(self, node: Node, scope: Scope) -> Values:
        """What a command prints, where that can be told."""
        if isinstance(node, Sequence) and not node.items:
            return Values(("",), complete=True)
        if isinstance(node, Sequence) and len(node.items) == 1:
            return self.printed(node.items[0][0], scope)
        if isinstance(node, Compound) and node.kind in (Kind.GROUP, Kind.SUBSHELL):
            return self.printed(node.bodies[0], scope)
        if isinstance(node, Pipeline):
            stdin = scope.stdin
            for member in node.members:
                stdin = self.printed(member, dataclasses.replace(scope, stdin=stdin))
            return stdin
        if not isinstance(node, Simple) or not node.words:
            return UNKNOWN
        return self._printed_simple(node, scope)

    def _printed_simple(self, node: Simple, scope: Scope) -> Values:
        if any(redirect.operator[0] in ">&" for redirect in node.redirects):
            return UNKNOWN
        if node.words[0].bare() == "pwd":
            return scope.variables.folder
        with self.deeper(node.start):
            stdin = self.input_of(node.redirects, scope)
            text = stdin.texts[0] if len(stdin.texts) == 1 else None
            argvs = self.words(node.words, scope)[:4]
            made = [self._output(argv, text) for argv in argvs if argv]
        texts = tuple(each for each in made if each is not None)
        sure = len(texts) == len(argvs) == 1
        return Values(texts, sure and (stdin.complete or argvs[0][0] in NO_INPUT))

    def _output(self, argv: list[str], stdin: str | None) -> str | None:
        self.effort.spend(cost(argv, stdin))
        return output(argv, stdin)

    def copied(self, variables: Variables) -> Variables:
        """To go back to, or to change apart."""
        self.effort.spend(2 + (len(variables.values) + len(variables.arrays)) // BY_HAND)
        return variables.copy()

    def apart(self, scope: Scope) -> Scope:
        """In a process of its own."""
        return dataclasses.replace(scope, variables=self.copied(scope.variables))

    def outputs(self, scope: Scope) -> _Outputs:
        return _Outputs(self, scope)

    def words(self, words: list[Word], scope: Scope) -> list[list[str]]:
        ways = [expand(word, scope.variables, self.outputs(scope)) for word in words]
        return product(ways)

    def doubt(self, doubt: Doubt, place: Place, why: str) -> None:
        if (doubt, place, why) not in self.found.doubts[-8:]:
            self.found.doubts.append((doubt, place, why))

    @contextlib.contextmanager
    def deeper(self, position: int) -> Iterator[None]:
        self.effort.spend(COMMAND, position)
        self.effort.enter(position)
        yield
        self.effort.depth -= 1

    def emit(self, call: Call) -> None:
        """Many rules look at every argument of every call, and longer where it is not known."""
        self.found.calls.append(call)
        fields = [field for argv in call.argvs for field in argv]
        unknown = sum(not field.isascii() for field in fields)
        characters = 4 * sum(map(len, fields)) // CHARACTERS
        self.effort.spend(1 + len(fields) // 2 + 4 * unknown + characters, call.place.start)


class _Outputs:
    """What substitutions give, for whoever expands words in a scope."""

    def __init__(self, streams: Streams, scope: Scope) -> None:
        self._streams = streams
        self._scope = scope

    def process(self, part: Substitution) -> str:
        number = len(self._streams.processes)
        if number >= MAX_PROCESSES:
            raise TooMuch("it has too many process substitutions", 0)
        path = f"/dev/fd/{chr(PROCESSES + number)}"
        self._streams.processes[path] = self._streams.printed(part.body, self._scope)
        return path

    def spend(self, steps: int) -> None:
        self._streams.effort.spend(steps)

    def __call__(self, part: Substitution) -> Values:
        values = self._streams.printed(part.body, self._scope)
        texts = [text.rstrip("\n") for text in values.texts]
        if any(NAME in text for text in texts):
            texts.append("")  # It may find nothing.
        return Values(tuple(texts), values.complete)
