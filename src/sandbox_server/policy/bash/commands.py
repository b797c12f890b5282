"""Bash source into commands: lists, pipelines, simple commands, heredocs."""

from __future__ import annotations

import re
from abc import abstractmethod

from sandbox_server.policy.bash.effort import Effort
from sandbox_server.policy.bash.redirections import RedirectionParser
from sandbox_server.policy.bash.syntax import (
    Arithmetic,
    Assignment,
    Function,
    How,
    Node,
    Part,
    Pipeline,
    Sequence,
    Simple,
    Text,
    TooMuch,
    Unclear,
    Word,
)

_CLOSERS = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "in", "}"})
_RESERVED = re.compile(
    r"(?:if|then|else|elif|fi|while|until|for|select|case|esac|do|done|in|function|time|coproc"
    r"|\{|\}|!|\[\[)(?=[ \t\n;&|<>()]|\\\n|\Z)"
)
_OPENERS = frozenset({"if", "while", "until", "for", "select", "case", "function", "{", "[["})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=\[|\+?=)")
_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")
_DECLARING = frozenset({"declare", "typeset", "local", "readonly", "export"})


class CommandParser(RedirectionParser):
    """A parser of one source. Commands before one that is Unclear are kept in `whole`."""

    def __init__(
        self, source: str, effort: Effort | None = None, *, pinned: tuple[int, int] | None = None
    ) -> None:
        super().__init__(source, effort, pinned=pinned)
        self.whole = Sequence([])

    def parse(self) -> Sequence:
        """Everything. Raises Unclear."""
        self._sequence(self.whole)
        if self.position < self.end:
            raise self.unclear(f"{self.next()!r} is not expected here")
        self._read_heredocs()
        return self.whole

    def substituted(self) -> Sequence:
        outer, self._pending = self._pending, []
        self._outer_pending += len(outer)
        body = self._sequence(Sequence([]))
        if self.next() != ")":
            raise self.unclear("a parenthesis is never closed")
        if self._pending:
            raise self.unclear("a heredoc whose text is not there")
        self.position += 1
        self._pending = outer
        self._outer_pending -= len(outer)
        return body

    def _between(self, start: int, end: int) -> Sequence:
        before = self.position, self.end, self._pending
        self.position, self.end, self._pending = start, end, []
        body = self._sequence(Sequence([]))
        if self.position < self.end or self._pending:
            raise self.unclear("what is between backticks is not understood")
        self.position, self.end, self._pending = before
        return body

    # Lists and pipelines

    def _sequence(self, made: Sequence, ends: frozenset[str] = frozenset()) -> Sequence:
        """Commands up to one of the reserved words `ends`, a closing parenthesis or the end."""
        while True:
            self._skip_lines()
            if self.position >= self.end or self.next() == ")" or self.looking_at(";;"):
                return made
            if self.looking_at(";&"):
                return made
            reserved = self._reserved()
            if reserved in ends:
                return made
            if reserved in _CLOSERS:
                raise self.unclear(f"{reserved} is not expected here")
            self._and_or(made)

    def _and_or(self, made: Sequence) -> None:
        """A chain of pipelines, with what separates it from the next."""
        first = len(made.items)
        how = How.ALWAYS
        while True:
            made.items.append((self._pipeline(), how))
            self._skip_gap()
            if not (self.looking_at("&&") or self.looking_at("||")):
                break
            self.position += 2
            how = How.MAYBE
            self._skip_lines()
        if self.next() == ";" and not self.looking_at(";;") and not self.looking_at(";&"):
            self.position += 1
            self.not_split(";", ";&")
        elif self.next() == "&":
            self.position += 1
            self.not_split("&", "&>")
            for index in range(first, len(made.items)):
                made.items[index] = made.items[index][0], How.BACKGROUND
        elif self.next() not in ("\n", ")", "", ";"):
            raise self.unclear(f"{self.next()!r} is not expected here")

    def _pipeline(self) -> Node:
        self._prefixes()
        members = [self._command()]
        while True:
            self._skip_gap()
            if self.next() != "|" or self.looking_at("||"):
                break
            self.position += 2 if self.looking_at("|&") else 1
            self.not_split("|", "|&")
            self._skip_lines()
            members.append(self._command())
        return members[0] if len(members) == 1 else Pipeline(members)

    def _prefixes(self) -> None:
        """`!` and `time` are parts of the pipeline, not commands."""
        while (reserved := self._reserved()) in ("!", "time"):
            self.position += len(reserved or "")
            self.skip_blanks()
            if reserved == "time":
                for option in ("-p", "--"):
                    if self.looking_at(option) and self.looking_at(" ", 2):
                        self.position += 2
                        self.skip_blanks()
        if self.position >= self.end or self.next() in "\n;&":
            raise self.unclear("a pipeline without a command")

    def _command(self) -> Node:
        self.effort.spend(2, self.position)
        self.skip_blanks()
        reserved = self._reserved()
        if self.next() == "(" or reserved in _OPENERS:
            return self._compound(reserved or "(")
        if reserved == "coproc":
            return self._coproc()
        if reserved in _CLOSERS or reserved in ("!", "time"):
            raise self.unclear(f"{reserved} is not expected here")
        return self._simple()

    # Simple commands

    def _simple(self) -> Node:
        start = self.position
        made = Simple("", start, start, [], [], [])
        while True:
            self.skip_blanks()
            end = self.position
            if self.next() == "#":
                break
            if self._redirect(made.redirects):
                continue
            if not made.words and self._assignment(made.assignments):
                continue
            if made.words and made.words[0].bare() in _DECLARING:
                declared: list[Assignment] = []
                if self._assignment(declared):
                    made.words.append(self._declared(declared[0], end))
                    made.assignments.extend(d for d in declared if isinstance(d.value, list))
                    continue
            word = self.word()
            if not word.parts:
                break
            made.words.append(word)
            if len(made.words) == 1 and not made.assignments and not made.redirects:
                if self._parentheses():
                    return self._function(word.bare(), start)
                if (word.bare() or "") in _CLOSERS:
                    raise self.unclear("a reserved word in pieces")
        if not (made.words or made.assignments or made.redirects):
            raise self.unclear(f"{self.next() or 'the end'!r} is not expected here")
        made.start, made.end = self.pinned or (start, self._last(start))
        made.text = self.source[start : self._last(start)]
        return made

    def _last(self, start: int) -> int:
        """Where the text before here ends, without the blanks; one may be escaped."""
        text = self.source[start : self.position]
        plain = text.rstrip(" \t")
        escaped = plain.endswith("\\") and len(plain) < len(text)
        return start + max(len(plain) + escaped, 1)

    def _assignment(self, made: list[Assignment]) -> bool:
        found = _ASSIGNED.match(self.source, self.position, self.end)
        if not found:
            return False
        before = self.position
        self.position = found.end()
        subscript = None
        if self.next() == "[":
            self.position += 1
            inner = self.subscript()
            subscript = inner if isinstance(inner, Arithmetic) else None
        append = self.looking_at("+=")
        if not (append or self.looking_at("=")):
            self.position = before
            return False
        self.position += 2 if append else 1
        value = self._array() if self.next() == "(" else self.word()
        made.append(Assignment(found[0], value, append, subscript))
        return True

    def _array(self) -> list[Word]:
        self.position += 1
        words: list[Word] = []
        while True:
            self._skip_lines()
            if self.next() == ")":
                self.position += 1
                return words
            keyed = self._key(words)
            word = self.word()
            if not word.parts and not keyed:
                raise self.unclear("a list that is never closed")
            words.append(word)

    def _key(self, words: list[Word]) -> bool:
        """`[expression]=` before a value, as against a pattern that starts with a bracket."""
        before = self.position
        if self.next() != "[":
            return False
        self.position += 1
        try:
            inner = self.subscript()
        except TooMuch:
            raise
        except Unclear:
            inner = ""
        if not self.looking_at("=") or not isinstance(inner, Arithmetic):
            self.position = before
            return False
        words.append(Word([inner], before, self.position))
        self.position += 1
        return True

    def _reserved(self) -> str | None:
        found = _RESERVED.match(self.source, self.position, self.end)
        return found[0] if found else None

    def _expect(self, *words: str) -> str:
        self._skip_lines()
        reserved = self._reserved()
        if reserved is None or reserved not in words:
            raise self.unclear(f"{' or '.join(words)} is missing")
        self.position += len(reserved)
        return reserved

    def _parentheses(self) -> bool:
        found = _PARENTHESES.match(self.source, self.position, self.end)
        if found:
            self.position = found.end()
        elif self.next() == "(":
            raise self.unclear("a parenthesis is not expected here")
        return bool(found)

    @abstractmethod
    def _compound(self, opener: str) -> Node:
        """`(`, or the compound command of a reserved word."""

    @abstractmethod
    def _coproc(self) -> Node: ...

    @abstractmethod
    def _function(self, name: str | None, start: int) -> Function:
        """After the parentheses."""

    def _declared(self, assignment: Assignment, start: int) -> Word:
        """`declare x=1` has an argument `x=1` that is not split; braces in it make it several."""
        value = assignment.value
        inner: list[Part] = value.parts if isinstance(value, Word) else [Text("", quoted=True)]
        if any(isinstance(part, Text) and not part.quoted and "{" in part.text for part in inner):
            raise self.unclear("braces in a declaration")
        return Word([Text(f"{assignment.name}=", quoted=True), *inner], start, self.position)
