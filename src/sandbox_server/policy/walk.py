"""Walks the syntax tree: what always runs, what may run, what runs in a subshell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from sandbox_server.policy.analysis import Call, Doubt, Place, Scope
from sandbox_server.policy.bash import syntax
from sandbox_server.policy.bash.source import BY_HAND, Effort
from sandbox_server.policy.evaluation import (
    compared,
    evaluate,
    evaluated,
    evaluates_text,
    is_number,
    named,
    names_element,
)
from sandbox_server.policy.expand import expand
from sandbox_server.policy.fields import HOLE, SPLIT
from sandbox_server.policy.streams import Streams
from sandbox_server.policy.variables import UNKNOWN, Values


class Walk(Streams):
    """One walk over one command. Its simple commands are for the whole analyser."""

    def __init__(self, effort: Effort) -> None:
        super().__init__(effort)
        self.functions: dict[str, syntax.Function] = {}

    def simple(self, node: syntax.Simple, scope: Scope) -> None:
        raise NotImplementedError

    # Structure

    def sequence(self, sequence: syntax.Sequence, scope: Scope) -> None:
        for node, how in sequence.items:
            if how is syntax.How.BACKGROUND:
                self.node(node, self.apart(scope))
            elif how is syntax.How.MAYBE:
                self._maybe(node, scope)
            else:
                self.node(node, scope)

    def node(self, node: syntax.Node, scope: Scope) -> None:
        if isinstance(node, syntax.Simple):
            self.simple(node, scope)
            return
        self.effort.spend(1)
        if isinstance(node, syntax.Pipeline):
            self._pipeline(node, scope)
        elif isinstance(node, syntax.Compound):
            self._compound(node, scope)
        elif isinstance(node, syntax.Function):
            self._define(node, scope)
        else:
            self.sequence(node, scope)

    def _maybe(self, node: syntax.Node, scope: Scope) -> None:
        before = self.copied(scope.variables)
        self.node(node, scope)
        scope.variables.or_as(before)

    def _pipeline(self, node: syntax.Pipeline, scope: Scope) -> None:
        stdin = scope.stdin
        for member in node.members:
            inner = dataclasses.replace(self.apart(scope), stdin=stdin)
            self.node(member, inner)
            stdin = self.printed(member, inner)

    def _compound(self, node: syntax.Compound, scope: Scope) -> None:
        place = scope.place or Place("", 0, 0)
        if writes := self.redirected(node.redirects, scope, place):
            self.emit(scope.wordless(place, writes=writes))
        if node.redirects:
            scope = dataclasses.replace(scope, stdin=self.input_of(node.redirects, scope))
        for word in node.words:
            self.parts(word.parts, scope, place)
        if node.kind is syntax.Kind.TEST:
            self._test(node, scope, place)
        if node.kind is syntax.Kind.SUBSHELL:
            scope = self.apart(scope)
        if node.kind is syntax.Kind.LOOP:
            self._loop(node, scope, place)
        elif node.kind in (syntax.Kind.IF, syntax.Kind.CASE):
            self._branches(node.bodies, scope)
        else:
            for body in node.bodies:
                self.sequence(body, scope)

    def _test(self, node: syntax.Compound, scope: Scope, place: Place) -> None:
        outputs = self.outputs(scope)
        numbers = all(is_number(word, scope.variables, outputs) for word in compared(node.words))
        if not numbers or any(names_element(word) for word in named(node.words)):
            self.doubt(Doubt.UNKNOWN_VALUE, place, "a value in [[ ]] may run a command")

    def _branches(self, bodies: list[syntax.Sequence], scope: Scope) -> None:
        """Each may run or not, and sees what earlier ones assign (a condition, then its body)."""
        for body in bodies:
            before = self.copied(scope.variables)
            self.sequence(body, scope)
            scope.variables.or_as(before)

    def _loop(self, node: syntax.Compound, scope: Scope, place: Place) -> None:
        """Walk the body twice: its start sees what its end assigned in the previous round."""
        before = self.copied(scope.variables)
        if node.variable:
            self.emit(scope.wordless(place, assigned=[node.variable]))
            scope.variables.assign(node.variable, self._listed(node.words, scope))
        calls, doubts = len(self.found.calls), len(self.found.doubts)
        first = self.copied(scope.variables)
        for body in node.bodies:
            self.sequence(body, scope)
        if changed := scope.variables.changed(first):
            del self.found.calls[calls:], self.found.doubts[doubts:]
            scope.variables.or_as(first)
            again = self.copied(scope.variables)
            for body in node.bodies:
                self.sequence(body, scope)
            for name in scope.variables.changed(again) - changed:
                scope.variables.forget(name)
        scope.variables.or_as(before)

    def _listed(self, words: list[syntax.Word], scope: Scope) -> Values:
        if not words:
            return Values((HOLE,), complete=True)
        fields: dict[str, None] = {}
        for word in words:
            for way in expand(word, scope.variables, self.outputs(scope)):
                fields.update(dict.fromkeys(field.replace(SPLIT, HOLE) for field in way))
        return Values((), complete=True).or_else(Values(tuple(fields), complete=True))

    def _define(self, node: syntax.Function, scope: Scope) -> None:
        place = scope.place or Place(node.text, node.start, node.end)
        self.effort.spend(len(node.text) // BY_HAND)
        bomb = is_fork_bomb(node)
        self.emit(Call(place, [[node.name]], via=scope.via, defines=True, fork_bomb=bomb))
        inside = self.apart(scope)
        inside.variables.values.update({str(number): UNKNOWN for number in range(10)})
        self.node(node.body, inside)
        variables = scope.variables
        variables.unstable |= inside.variables.changed(variables)
        variables.functions |= {node.name}
        self.functions[node.name] = node

    # Words

    def redirected(self, redirects: list[syntax.Redirect], scope: Scope, place: Place) -> list[str]:
        """Walk the substitutions in redirection targets; returns the files written."""
        for redirect in redirects:
            self.parts(redirect.target.parts, scope, place)
        return self.written(redirects, scope)

    def parts(self, parts: list[syntax.Part], scope: Scope, place: Place) -> None:
        """Walk the commands that run while words are expanded."""
        for part in parts:
            if isinstance(part, syntax.Substitution):
                self.sequence(part.body, self.apart(scope))
            elif isinstance(part, syntax.Arithmetic):
                self.parts(part.parts, scope, place)
            elif isinstance(part, syntax.Parameter):
                self.parts(part.word, scope, place)
                if isinstance(part.subscript, syntax.Arithmetic):
                    self.parts(part.subscript.parts, scope, place)
                if part.operator in ("=", ":="):
                    self.emit(scope.wordless(place, assigned=[part.name]))
                    scope.variables.forget(part.name)
            else:
                continue
            self._evaluated(part, scope, place)

    def _evaluated(self, part: syntax.Part, scope: Scope, place: Place) -> None:
        for expression in evaluated(part):
            if not evaluate(expression, scope.variables, self.outputs(scope)):
                why = "a value in an arithmetic expression may run a command"
                self.doubt(Doubt.UNKNOWN_VALUE, place, why)
        if evaluates_text(part):
            self.doubt(Doubt.UNKNOWN_VALUE, place, "a value is expanded again")

    def assigned_parts(self, assignments: list[syntax.Assignment]) -> Iterator[syntax.Part]:
        for assignment in assignments:
            words = assignment.value if isinstance(assignment.value, list) else [assignment.value]
            for word in words:
                yield from word.parts
            if assignment.subscript:
                yield assignment.subscript


def is_fork_bomb(function: syntax.Function) -> bool:
    """Whether the function unconditionally pipes itself into itself, or calls itself twice, once
    in the background. Recursion behind an `if` may end, so it is not a bomb."""
    for pipeline in _pipelines(function.body):
        if sum(_calls(member, function.name) for member in pipeline.members) > 1:
            return True
    calls = list(_unconditional(function.body, syntax.How.ALWAYS, function.name))
    return len(calls) > 1 and syntax.How.BACKGROUND in calls


def _calls(node: syntax.Node, name: str) -> bool:
    return isinstance(node, syntax.Simple) and bool(node.words) and node.words[0].bare() == name


def _pipelines(node: syntax.Node) -> Iterator[syntax.Pipeline]:
    if isinstance(node, syntax.Pipeline):
        yield node
        for member in node.members:
            yield from _pipelines(member)
    elif isinstance(node, syntax.Compound):
        for body in node.bodies:
            yield from _pipelines(body)
    elif isinstance(node, syntax.Sequence):
        for item, _ in node.items:
            yield from _pipelines(item)


def _unconditional(node: syntax.Node, how: syntax.How, name: str) -> Iterator[syntax.How]:
    if _calls(node, name):
        yield how
    elif isinstance(node, syntax.Sequence):
        for item, within in node.items:
            if within is not syntax.How.MAYBE:
                yield from _unconditional(item, within, name)
    elif isinstance(node, syntax.Compound) and node.kind in (
        syntax.Kind.GROUP,
        syntax.Kind.SUBSHELL,
    ):
        for body in node.bodies:
            yield from _unconditional(body, how, name)
