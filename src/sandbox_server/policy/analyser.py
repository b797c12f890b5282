"""Analysis of each simple command: what it assigns, and which commands it runs in turn."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping

from sandbox_server.policy.analysis import Call, Doubt, Place, Scope
from sandbox_server.policy.bash.parser import Parser
from sandbox_server.policy.bash.source import BY_HAND, CHARACTERS, Effort
from sandbox_server.policy.bash.syntax import Assignment, Sequence, Simple, TooMuch, Unclear
from sandbox_server.policy.builtins import DECLARING, affect, assigned_names, bind
from sandbox_server.policy.expand import expand, expand_one, is_literal
from sandbox_server.policy.fields import HOLE, NAME, SPLIT, certain, command_name, known
from sandbox_server.policy.inner import Inner, Run, Script, Unread
from sandbox_server.policy.variables import UNKNOWN, Values, Variables
from sandbox_server.policy.walk import Walk
from sandbox_server.policy.wrappers import READS_INPUT, unwrap

_BAD_SUBSCRIPT = re.compile(r"\[|[^\x20-\x7e]")
MAX_SCANNED = 500
"""Most distinct pieces taken as commands, out of MAX_PIECES examined."""
MAX_PIECES = 2000
MAX_WORDS = 2000
MAX_PIECE = 4096
_SEPARATORS = re.compile(r"[;&|\n(){}`]+|\$\(")
_BEFORE_NAMES = frozenset({"do", "then", "else", "!", "sudo"})


class Analyser(Walk):
    """Records every simple command, and analyses what it runs."""

    def __init__(self, effort: Effort) -> None:
        super().__init__(effort)
        self._aliases: dict[str, str] = {}
        self._active: list[str] = []

    def source(self, source: str, scope: Scope) -> None:
        """Analyse bash source. What does not parse is scanned for words."""
        place = scope.place
        pinned = (place.start, place.end) if place else None
        self.effort.spend(len(source) // CHARACTERS)
        parser = Parser(source, self.effort, pinned=pinned)
        depth = self.effort.depth
        parsed: Sequence = parser.whole
        try:
            parser.parse()
        except TooMuch:
            raise
        except Unclear as exc:
            self.effort.depth = depth
            rest = parser.text[self._reached(parsed) if not pinned else 0 :]
            here = place or Place(rest[:200], len(source) - len(rest), len(source))
            self.doubt(Doubt.NOT_PARSED, here, exc.why)
            self.effort.spend(len(rest) // CHARACTERS)
            for call in scan(rest, here):
                self.emit(call)
        self.sequence(parsed, scope)

    @staticmethod
    def _reached(parsed: Sequence) -> int:
        """End of the last parsed command if it is a simple one, else 0."""
        last = parsed.items[-1][0] if parsed.items else None
        return last.end if isinstance(last, Simple) else 0

    def simple(self, node: Simple, scope: Scope) -> None:
        place = scope.place or Place(node.text, node.start, node.end)
        if self._aliased(node, scope, place):
            return
        self.parts(list(self.assigned_parts(node.assignments)), scope, place)
        for word in node.words:
            self.parts(word.parts, scope, place)
        writes = self.redirected(node.redirects, scope, place) if node.redirects else []
        inner = scope
        if node.redirects:
            inner = dataclasses.replace(scope, stdin=self.input_of(node.redirects, scope))
        names = [assignment.name for assignment in node.assignments]
        if not node.words:
            self._assign(node.assignments, scope)
            self.emit(scope.wordless(place, assigned=names, writes=writes))
            return
        before = {name: scope.variables.values.get(name) for name in names}
        self._assign(node.assignments, inner)
        call = Call(place, self.words(node.words, inner), via=scope.via, assigned=names)
        call.writes, call.literal = writes, is_literal(node.words[0])
        self._invoke(call, inner)
        if node.words[0].bare() not in DECLARING:
            _restore(before, scope.variables)

    def _invoke(self, call: Call, scope: Scope) -> None:
        """Record a call, made by the source or by another command, and analyse what it runs."""
        call.cwd, call.other_cwds = scope.variables.cwd, scope.variables.other_cwds
        self.emit(call)
        with self.deeper():
            for index, argv in enumerate(call.argvs):
                before = self.copied(scope.variables) if index else None
                if argv:
                    self._invoke_argv(call, argv, scope)
                if before is not None:
                    scope.variables.or_as(before)
        if not any(call.argvs) and not call.literal:
            self.doubt(Doubt.UNKNOWN_NAME, call.place, "the command name is only known at run time")

    def _invoke_argv(self, call: Call, argv: list[str], scope: Scope) -> None:
        name = command_name(argv[0])
        if name is None or not call.literal:
            self.doubt(Doubt.UNKNOWN_NAME, call.place, "the command name is only known at run time")
        if name is None:
            if likely := _likely(argv):
                self._invoke(Call(call.place, [likely], call.via, literal=False), scope)
            return
        call.assigned.extend(assigned_names(name, argv))
        self._subscripts(name, argv, call)
        if name in self.functions and call.direct:
            call.function = name in scope.variables.functions
            self._call_function(name, argv, scope)
        elif name == "alias":
            self._alias(argv, call, scope)
        stdins: list[str | None] = [*scope.stdin.texts[:2]]
        complete = scope.stdin.complete and 0 < len(scope.stdin.texts) <= 2
        for stdin in stdins if complete else [*stdins, None]:
            for inner in unwrap(name, argv, stdin):
                self._inner(name, inner, call, scope)
            if name not in READS_INPUT:
                break
        sure = len(stdins) == 1 and (complete or NAME not in (stdins[0] or ""))
        affect(name, argv, stdins[0] if sure else None, scope.variables)

    def _inner(self, name: str, inner: Inner, call: Call, scope: Scope) -> None:
        via = (*call.via, name)
        if isinstance(inner, Unread):
            self.doubt(Doubt.UNKNOWN_SCRIPT, call.place, inner.why)
            return
        if isinstance(inner, Run):
            names = [text.partition("=")[0] for text in inner.assigned]
            made = Call(call.place, [inner.argv], via, assigned=names, direct=False)
            if inner.elsewhere:
                scope = self.apart(scope)
                scope.variables.cwd, scope.variables.other_cwds = None, ()
            self._invoke(made, dataclasses.replace(scope, via=via))
            return
        self._script(inner, call, dataclasses.replace(scope, via=via, place=call.place))

    def _script(self, script: Script, call: Call, scope: Scope) -> None:
        text = script.text
        read = self.processes.get(script.file or "")
        if read and len(read.texts) == 1:
            text = read.texts[0] if read.complete else f"{read.texts[0]}\n{SPLIT}"
        if SPLIT in text or HOLE in text or NAME in text:
            why = "the script given to the shell is only known at run time"
            if script.file is not None:
                file = certain(script.file) or "the file"
                why = f"the content of {file[:100]} is not known before running"
            self.doubt(Doubt.UNKNOWN_SCRIPT, call.place, why)
        text = certain(text) or text.replace(SPLIT, HOLE).replace(NAME, HOLE)
        if not text.strip(HOLE + " \t\n"):
            return
        if not script.here:
            self.effort.spend(len(scope.variables.values) // BY_HAND)
            scope = dataclasses.replace(scope, variables=scope.variables.inherited())
        if script.arguments:
            scope.variables.assign("0", Values(script.arguments[:1]))
            bind(list(script.arguments[1:]), scope.variables)
        if script.words:
            text = text.replace("\\_", " ")
        before = scope.variables
        if script.late:
            scope = self.apart(scope)
        with self.deeper():
            self.source(text, dataclasses.replace(scope, stdin=UNKNOWN))
        if script.late:
            before.unstable |= scope.variables.changed(before)

    # Functions, aliases and variables

    def _call_function(self, name: str, argv: list[str], scope: Scope) -> None:
        if name in self._active:
            return
        self._active.append(name)
        before = self.copied(scope.variables)
        bind(argv[1:], scope.variables)
        self.node(self.functions[name].body, scope)
        for key in [*"@123456789"]:
            scope.variables.values.pop(key, None)
            scope.variables.arrays.pop(key, None)
            if key in before.values:
                scope.variables.values[key] = before.values[key]
            if key in before.arrays:
                scope.variables.arrays[key] = before.arrays[key]
        self._active.pop()

    def _alias(self, argv: list[str], call: Call, scope: Scope) -> None:
        for word in argv[1:]:
            name, equals, value = word.partition("=")
            if equals:
                self._aliases[name] = certain(value) or HOLE
                via = (*call.via, "alias")
                inside = dataclasses.replace(self.apart(scope), place=call.place, via=via)
                self._script(Script(value, here=True), call, inside)

    def _aliased(self, node: Simple, scope: Scope, place: Place) -> bool:
        name = node.words[0].bare() if node.words and not node.assignments else None
        value = self._aliases.get(name or "")
        if name is None or value is None or f"alias {name}" in self._active:
            return False
        self._active.append(f"alias {name}")
        with self.deeper():
            text = value + node.text[len(name) :]
            self.source(text, dataclasses.replace(scope, place=place, via=(*scope.via, name)))
        self._active.pop()
        return True

    def _assign(self, assignments: list[Assignment], scope: Scope) -> None:
        variables, outputs = scope.variables, self.outputs(scope)
        for assignment in assignments:
            name, value = assignment.name, assignment.value
            if isinstance(value, list):
                ways = [expand(word, variables, outputs) for word in value]
                fields = tuple(
                    field for each in ways for field in [*each[0], *[SPLIT] * (len(each) > 1)]
                )
                before = variables.array(name) if assignment.append else ()
                self.effort.spend((len(before) + len(fields)) // BY_HAND)
                variables.set_array(name, (*before, *fields))
                continue
            values = expand_one(value, variables, outputs)
            if assignment.append:
                values = variables.get(name).followed_by(values)
                self.effort.spend(sum(map(len, values.texts)) // CHARACTERS)
            if assignment.subscript:
                variables.arrays.pop(name, None)
                variables.forget(name)
            else:
                variables.assign(name, values)

    def _subscripts(self, name: str, argv: list[str], call: Call) -> None:
        """Builtins that take variable names evaluate subscripts: `read 'a[$(reboot)]'`."""
        if name == "let":
            bad = any(not re.fullmatch(r"[\w\s=+*/%()<>!&|^~?:,-]+", word) for word in argv[1:])
        elif name in ("test", "["):
            bad = any(
                word == "-v" and _BAD_SUBSCRIPT.search(after)
                for word, after in itertools.pairwise(argv)
            )
        elif name in DECLARING and any(_is_compound(word) for word in argv[1:]):
            bad = True
        elif named := assigned_names(name, argv):
            bad = any(each == HOLE for each in named) or any(
                "[" in word.partition("=")[0] for word in argv[1:]
            )
        else:
            return
        if bad:
            self.doubt(Doubt.UNKNOWN_VALUE, call.place, f"{name} evaluates its argument")


def _restore(before: Mapping[str, Values | None], variables: Variables) -> None:
    """After `X=1 command`, X has its old value again, unless the command assigned it."""
    for name, held in before.items():
        variables.values.pop(name, None)
        variables.arrays.pop(name, None)
        if held is not None:
            variables.values[name] = Values(held.texts)


def _is_compound(word: str) -> bool:
    """`declare 'x=($(reboot))'`: bash expands an array even when it is quoted."""
    value = word.partition("=")[2]
    return value[:1] in ("(", HOLE, SPLIT)


def _likely(argv: list[str]) -> list[str]:
    """The argv if every unknown part of its name is empty; [] if that leaves no name."""
    rest = re.sub(f"[{HOLE}{SPLIT}]", "", argv[0])
    if rest:
        return [rest, *argv[1:]] if rest != argv[0] and known(rest) else []
    return argv[1:] if argv[1:] and argv[1][:1] != "-" else []


def scan(source: str, place: Place) -> list[Call]:
    """Take the words between separators as commands, without quotes and backslashes. No parsing:
    text in a string also looks like a command."""
    seen: set[str] = set()
    calls: list[Call] = []
    left = MAX_WORDS
    for piece in _pieces(source):
        if piece in seen:
            continue
        seen.add(piece)
        if words := _words(piece):
            calls.append(Call(place, [words], ("?",), literal=False))
            left -= len(words)
        if len(seen) >= MAX_SCANNED or left <= 0:
            break
    return calls


def _pieces(source: str) -> Iterator[str]:
    last = 0
    for _, separator in zip(range(MAX_PIECES), _SEPARATORS.finditer(source), strict=False):
        yield source[last : min(separator.start(), last + MAX_PIECE)]
        last = separator.end()
    yield source[last : last + MAX_PIECE]


def _words(piece: str) -> list[str]:
    words = re.sub(r"[\"'\\]", "", piece).split()
    first = 0
    while first < len(words) and ("=" in words[first] or words[first] in _BEFORE_NAMES):
        first += 1
    return words[first : first + 64]
