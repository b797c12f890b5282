"""What commands read, print and write, as far as it is known before running."""

from __future__ import annotations

import dataclasses

from sandbox_server.policy.bash.syntax import (
    Compound,
    Kind,
    Node,
    Pipeline,
    Redirect,
    Sequence,
    Simple,
    Substitution,
    TooMuch,
    Word,
)
from sandbox_server.policy.expand import expand, expand_one, product
from sandbox_server.policy.fields import HOLE, NAME
from sandbox_server.policy.outputs import NO_INPUT, cost, output
from sandbox_server.policy.record import Record, Scope
from sandbox_server.policy.variables import UNKNOWN, Values

PROCESSES = 0xE100
"""First of the private-use characters that number process substitutions."""
MAX_PROCESSES = 1000


class Streams:
    """Follows values through pipes, redirections and substitutions."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.processes: dict[str, Values] = {}
        """Output of process substitutions, by path."""

    def words(self, words: list[Word], scope: Scope) -> list[list[str]]:
        """Every possible argv that the words expand to."""
        outputs = self.outputs(scope)
        return product([expand(word, scope.variables, outputs) for word in words])

    def outputs(self, scope: Scope) -> _Outputs:
        return _Outputs(self, scope)

    def written(self, redirects: list[Redirect], scope: Scope) -> list[str]:
        """Files that output is redirected to, without descriptors such as `>&2`."""
        writes: list[str] = []
        for redirect in redirects:
            if redirect.operator[0] in ">&" or redirect.operator == "<>":
                values = expand_one(redirect.target, scope.variables, self.outputs(scope))
                writes.extend(values.alternatives(HOLE))
                if redirect.operator == ">&" and (writes[-1].isdigit() or writes[-1] == "-"):
                    writes.pop()
        return writes

    def input_of(self, redirects: list[Redirect], scope: Scope) -> Values:
        """The stdin after redirections."""
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
        """The output of a command, UNKNOWN if it cannot be predicted."""
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
        with self._record.deeper(node.start):
            stdin = self.input_of(node.redirects, scope)
            text = stdin.texts[0] if len(stdin.texts) == 1 else None
            argvs = self.words(node.words, scope)[:4]
            made = [self._output(argv, text) for argv in argvs if argv]
        texts = tuple(each for each in made if each is not None)
        sure = len(texts) == len(argvs) == 1
        return Values(texts, sure and (stdin.complete or argvs[0][0] in NO_INPUT))

    def spend(self, steps: int) -> None:
        self._record.effort.spend(steps)

    def _output(self, argv: list[str], stdin: str | None) -> str | None:
        self._record.effort.spend(cost(argv, stdin))
        return output(argv, stdin)


class _Outputs:
    """Outputs of substitutions in one scope (see expand.Outputs)."""

    def __init__(self, streams: Streams, scope: Scope) -> None:
        self._streams = streams
        self._scope = scope

    def process(self, part: Substitution) -> str:
        number = len(self._streams.processes)
        if number >= MAX_PROCESSES:
            raise TooMuch(f"more than {MAX_PROCESSES} process substitutions", 0)
        path = f"/dev/fd/{chr(PROCESSES + number)}"
        self._streams.processes[path] = self._streams.printed(part.body, self._scope)
        return path

    def spend(self, steps: int) -> None:
        self._streams.spend(steps)

    def __call__(self, part: Substitution) -> Values:
        values = self._streams.printed(part.body, self._scope)
        texts = [text.rstrip("\n") for text in values.texts]
        if any(NAME in text for text in texts):
            texts.append("")  # There may be no such name.
        return Values(tuple(texts), values.complete)
