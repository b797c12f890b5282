"""Through a parsed command, to every simple command it would run."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.bombs import is_fork_bomb
from sandbox_server.policy.evaluation import (
    compared,
    evaluate,
    evaluated,
    evaluates_text,
    is_number,
    named,
    names_element,
)
from sandbox_server.policy.expand import expand, expand_one, product
from sandbox_server.policy.fields import HOLE, SPLIT
from sandbox_server.policy.lexer import MAX_DEPTH, MAX_WORK, Effort
from sandbox_server.policy.outputs import SURE, output
from sandbox_server.policy.syntax import (
    Arithmetic,
    Assignment,
    Compound,
    Function,
    How,
    Kind,
    Node,
    Parameter,
    Part,
    Pipeline,
    Redirect,
    Sequence,
    Simple,
    Substitution,
    TooMuch,
    Word,
)
from sandbox_server.policy.variables import UNKNOWN, Values, Variables

MAX_CALLS = 4000
PROCESSES = 0xE100
WORK = 20
"""What a command counts for, as against a word."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a command stands: what it reads, who runs it."""

    variables: Variables
    stdin: Values = UNKNOWN
    via: tuple[str, ...] = ()
    place: Place | None = None
    """Of the command whose argument the source was."""

    def apart(self) -> Scope:
        """In a process of its own."""
        return dataclasses.replace(self, variables=self.variables.copy())


class Walk(ABC):
    """One walk over one command."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.found = Analysis()
        self.functions: dict[str, Function] = {}
        self.processes: dict[str, Values] = {}
        """What process substitutions print, by the path they stand for."""
        self.aliases: dict[str, str] = {}

    def doubt(self, doubt: Doubt, place: Place, why: str) -> None:
        if (doubt, place, why) not in self.found.doubts[-8:]:
            self.found.doubts.append((doubt, place, why))

    @contextlib.contextmanager
    def deeper(self, position: int) -> Iterator[None]:
        self.effort.work += WORK
        self.effort.depth += 1
        if self.effort.depth > MAX_DEPTH or self.effort.work > MAX_WORK:
            raise TooMuch("it is nested too deeply, or too long", position)
        yield
        self.effort.depth -= 1

    def emit(self, call: Call) -> None:
        self.found.calls.append(call)
        if len(self.found.calls) > MAX_CALLS:
            raise TooMuch("it has too many commands", call.place.start)

    # Structure

    def sequence(self, sequence: Sequence, scope: Scope) -> None:
        for node, how in sequence.items:
            if how is How.BACKGROUND:
                self.node(node, scope.apart())
            elif how is How.MAYBE:
                self._maybe(node, scope)
            else:
                self.node(node, scope)

    def node(self, node: Node, scope: Scope) -> None:
        if isinstance(node, Simple):
            self.simple(node, scope)
        elif isinstance(node, Pipeline):
            self._pipeline(node, scope)
        elif isinstance(node, Compound):
            self._compound(node, scope)
        elif isinstance(node, Function):
            self._define(node, scope)
        else:
            self.sequence(node, scope)

    @abstractmethod
    def simple(self, node: Simple, scope: Scope) -> None:
        """What is done with a simple command."""

    def _maybe(self, node: Node, scope: Scope) -> None:
        before = scope.variables.copy()
        self.node(node, scope)
        scope.variables.or_as(before)

    def _pipeline(self, node: Pipeline, scope: Scope) -> None:
        stdin = scope.stdin
        for member in node.members:
            inner = dataclasses.replace(scope.apart(), stdin=stdin)
            self.node(member, inner)
            stdin = self.printed(member, inner)

    def _compound(self, node: Compound, scope: Scope) -> None:
        place = scope.place or Place("", 0, 0)
        if writes := self.redirected(node.redirects, scope, place):
            self.emit(Call(place, [[]], via=scope.via, writes=writes))
        if node.redirects:
            scope = dataclasses.replace(scope, stdin=self.input_of(node.redirects, scope))
        for word in node.words:
            self.parts(word.parts, scope, place)
        if node.kind is Kind.TEST:
            self._test(node, scope, place)
        if node.kind is Kind.SUBSHELL:
            scope = scope.apart()
        if node.kind is Kind.LOOP:
            self._loop(node, scope, place)
        elif node.kind in (Kind.IF, Kind.CASE):
            self._branches(node.bodies, scope)
        else:
            for body in node.bodies:
                self.sequence(body, scope)

    def _test(self, node: Compound, scope: Scope, place: Place) -> None:
        outputs = self.outputs(scope)
        numbers = all(is_number(word, scope.variables, outputs) for word in compared(node.words))
        if not numbers or any(names_element(word) for word in named(node.words)):
            self.doubt(Doubt.UNKNOWN_VALUE, place, "a value in [[ ]] may be a command")

    def _branches(self, bodies: list[Sequence], scope: Scope) -> None:
        """Each may run or not; what one sets, the next may see (a condition and its body)."""
        for body in bodies:
            before = scope.variables.copy()
            self.sequence(body, scope)
            scope.variables.or_as(before)

    def _loop(self, node: Compound, scope: Scope, place: Place) -> None:
        """Twice: what the end of a body sets, its start sees the next time."""
        before = scope.variables.copy()
        if node.variable:
            self.emit(Call(place, [[]], via=scope.via, assigned=[node.variable]))
            scope.variables.assign(node.variable, self._listed(node.words, scope))
        calls, doubts = len(self.found.calls), len(self.found.doubts)
        first = scope.variables.copy()
        for body in node.bodies:
            self.sequence(body, scope)
        if changed := scope.variables.changed(first):
            del self.found.calls[calls:], self.found.doubts[doubts:]
            scope.variables.or_as(first)
            again = scope.variables.copy()
            for body in node.bodies:
                self.sequence(body, scope)
            for name in scope.variables.changed(again) - changed:
                scope.variables.forget(name)
        scope.variables.or_as(before)

    def _listed(self, words: list[Word], scope: Scope) -> Values:
        if not words:
            return Values((HOLE,), complete=True)
        fields: dict[str, None] = {}
        for word in words:
            for way in expand(word, scope.variables, self.outputs(scope)):
                fields.update(dict.fromkeys(field.replace(SPLIT, HOLE) for field in way))
        return Values(()).or_else(Values(tuple(fields))) if len(fields) > 8 else Values(
            tuple(fields), complete=True
        )  # fmt: skip

    def _define(self, node: Function, scope: Scope) -> None:
        place = scope.place or Place(node.text, node.start, node.end)
        bomb = is_fork_bomb(node)
        self.emit(Call(place, [[node.name]], via=scope.via, defines=True, fork_bomb=bomb))
        inside = scope.apart()
        inside.variables.values.update({str(number): UNKNOWN for number in range(10)})
        self.node(node.body, inside)
        variables = scope.variables
        variables.unstable |= inside.variables.changed(variables)
        variables.functions |= {node.name}
        self.functions[node.name] = node

    # Words

    def outputs(self, scope: Scope) -> _Outputs:
        return _Outputs(self, scope)

    def words(self, words: list[Word], scope: Scope) -> list[list[str]]:
        ways = [expand(word, scope.variables, self.outputs(scope)) for word in words]
        return product(ways)

    def parts(self, parts: list[Part], scope: Scope, place: Place) -> None:
        """What runs while words are expanded."""
        for part in parts:
            if isinstance(part, Substitution):
                self.sequence(part.body, scope.apart())
            elif isinstance(part, Arithmetic):
                self.parts(part.parts, scope, place)
            elif isinstance(part, Parameter):
                self.parts(part.word, scope, place)
                if isinstance(part.subscript, Arithmetic):
                    self.parts(part.subscript.parts, scope, place)
                if part.operator in ("=", ":="):
                    self.emit(Call(place, [[]], via=scope.via, assigned=[part.name]))
                    scope.variables.forget(part.name)
            else:
                continue
            self._evaluated(part, scope, place)

    def _evaluated(self, part: Part, scope: Scope, place: Place) -> None:
        for expression in evaluated(part):
            if not evaluate(expression, scope.variables, self.outputs(scope)):
                self.doubt(Doubt.UNKNOWN_VALUE, place, "an expression has a value that may be a"
                           " command")  # fmt: skip
        if evaluates_text(part):
            self.doubt(Doubt.UNKNOWN_VALUE, place, "the value of a variable is evaluated")

    def assigned_parts(self, assignments: list[Assignment]) -> Iterator[Part]:
        for assignment in assignments:
            words = assignment.value if isinstance(assignment.value, list) else [assignment.value]
            for word in words:
                yield from word.parts
            if assignment.subscript:
                yield assignment.subscript

    # Input and output

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
        with self.deeper(node.start):
            stdin = self.input_of(node.redirects, scope)
            text = stdin.texts[0] if len(stdin.texts) == 1 else None
            argvs = self.words(node.words, scope)[:4]
            made = [output(argv, text) for argv in argvs if argv]
        sure = len(made) == len(argvs) == 1 and made[0] is not None and argvs[0][0] in SURE
        texts = tuple(each for each in made if each is not None)
        return Values(texts, sure and (stdin.complete or argvs[0][0] != "cat"))


class _Outputs:
    """What substitutions give, for whoever expands words in a scope."""

    def __init__(self, walk: Walk, scope: Scope) -> None:
        self._walk = walk
        self._scope = scope

    def process(self, part: Substitution) -> str:
        path = f"/dev/fd/{chr(PROCESSES + len(self._walk.processes) % 1000)}"
        self._walk.processes[path] = self._walk.printed(part.body, self._scope)
        return path

    def __call__(self, part: Substitution) -> Values:
        values = self._walk.printed(part.body, self._scope)
        return Values(tuple(text.rstrip("\n") for text in values.texts), values.complete)
