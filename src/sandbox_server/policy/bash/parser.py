"""Parser for lists, pipelines and simple commands."""

from __future__ import annotations

import re

from sandbox_server.policy.bash.compounds import Compounds
from sandbox_server.policy.bash.source import Effort
from sandbox_server.policy.bash.syntax import (
    Arithmetic,
    Assignment,
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
_OPENERS = frozenset({"if", "while", "until", "for", "select", "case", "function", "{", "[["})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=\[|\+?=)")
_DECLARING = frozenset({"declare", "typeset", "local", "readonly", "export"})


class Parser(Compounds):
    """Parses one source. After Unclear, `whole` has the commands parsed so far."""

    def __init__(self, text: str, effort: Effort, *, pinned: tuple[int, int] | None = None) -> None:
        super().__init__(text, effort, pinned=pinned)
        self.pending = []
        self.whole = Sequence([])

    def parse(self) -> Sequence:
        """Parse all of the source. Raises Unclear."""
        self.sequence(self.whole)
        if self.position < self.end:
            raise Unclear(f"unexpected {self.next()!r}")
        self.read_heredocs()
        return self.whole

    def substituted(self) -> Sequence:
        outer, self.pending = self.pending, []
        self.outer_pending += len(outer)
        body = self.sequence(Sequence([]))
        if self.next() != ")":
            raise Unclear("unterminated $( or <(")
        if self.pending:
            raise Unclear("heredoc without a body in a substitution")
        self.position += 1
        self.pending = outer
        self.outer_pending -= len(outer)
        return body

    def between(self, start: int, end: int) -> Sequence:
        before = self.position, self.end, self.pending
        self.position, self.end, self.pending = start, end, []
        body = self.sequence(Sequence([]))
        if self.position < self.end or self.pending:
            raise Unclear("invalid command between backticks")
        self.position, self.end, self.pending = before
        return body

    def nested(self, text: str, start: int) -> Sequence:
        return Parser(text, self.effort, pinned=self.pinned or (start, start + 1)).parse()

    # Lists and pipelines

    def sequence(self, made: Sequence, ends: frozenset[str] = frozenset()) -> Sequence:
        """Commands up to one of the reserved words `ends`, a closing parenthesis or the end."""
        while True:
            self.skip_lines()
            if self.position >= self.end or self.next() == ")" or self.looking_at(";;"):
                return made
            if self.looking_at(";&"):
                return made
            reserved = self.reserved()
            if reserved in ends:
                return made
            if reserved in _CLOSERS:
                raise Unclear(f"unexpected {reserved}")
            self._and_or(made)

    def _and_or(self, made: Sequence) -> None:
        """A chain of pipelines, and the separator after it."""
        first = len(made.items)
        how = How.ALWAYS
        while True:
            made.items.append((self._pipeline(), how))
            if not (self.take("&&") or self.take("||")):
                break
            how = How.MAYBE
            self.skip_lines()
        separator = self.next()
        if separator == ";" and not (self.looking_at(";;") or self.looking_at(";&")):
            self.position += 1
            self.not_split(";", ";&")
        elif separator == "&":
            self.position += 1
            self.not_split("&", "&>")
            for index in range(first, len(made.items)):
                made.items[index] = made.items[index][0], How.BACKGROUND
        elif separator not in ("\n", ")", "", ";"):
            raise Unclear(f"unexpected {separator!r}")

    def _pipeline(self) -> Node:
        self._prefixes()
        members = [self.command()]
        while True:
            self.skip_gap()
            if self.next() != "|" or self.looking_at("||"):
                break
            self.position += 2 if self.looking_at("|&") else 1
            self.not_split("|", "|&")
            self.skip_lines()
            members.append(self.command())
        return members[0] if len(members) == 1 else Pipeline(members)

    def _prefixes(self) -> None:
        """Skip `!` and `time`, which belong to the pipeline."""
        while (reserved := self.reserved()) in ("!", "time"):
            self.position += len(reserved or "")
            self.skip_blanks()
            if reserved == "time":
                for option in ("-p", "--"):
                    if self.looking_at(option) and self.looking_at(" ", 2):
                        self.position += 2
                        self.skip_blanks()
        if self.position >= self.end or self.next() in "\n;&":
            raise Unclear("expected a command after ! or time")

    def command(self) -> Node:
        self.effort.spend(2)
        self.skip_blanks()
        reserved = self.reserved()
        if self.next() == "(" or reserved in _OPENERS:
            return self.compound(reserved or "(")
        if reserved == "coproc":
            return self.coproc()
        if reserved in _CLOSERS or reserved in ("!", "time"):
            raise Unclear(f"unexpected {reserved}")
        return self._simple()

    # Simple commands

    def _simple(self) -> Node:
        start = self.position
        made = Simple("", start, start, [], [], [])
        declaring = False
        while True:
            self.skip_blanks()
            end = self.position
            if self.next() == "#":
                break
            if self.redirect(made.redirects):
                continue
            if not made.words and self._assignment(made.assignments):
                continue
            if declaring:
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
                if self.parentheses():
                    return self.function(word.bare(), start)
                if (word.bare() or "") in _CLOSERS:
                    raise Unclear("a reserved word is split by a line continuation")
            declaring = declaring or (len(made.words) == 1 and word.bare() in _DECLARING)
        if not (made.words or made.assignments or made.redirects):
            raise Unclear(f"unexpected {self.next() or 'end of input'!r}")
        last = self._last(start)
        made.start, made.end = self.pinned or (start, last)
        made.text = self.text[start:last]
        return made

    def _last(self, start: int) -> int:
        """End of the text before here without trailing blanks, unless escaped."""
        text = self.text[start : self.position]
        plain = text.rstrip(" \t")
        escaped = plain.endswith("\\") and len(plain) < len(text)
        return start + max(len(plain) + escaped, 1)

    def _assignment(self, made: list[Assignment]) -> bool:
        found = _ASSIGNED.match(self.text, self.position, self.end)
        if not found:
            return False
        before = self.position
        self.position = found.end()
        subscript = None
        if self.take("["):
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
            self.skip_lines()
            if self.take(")"):
                return words
            keyed = self._key(words)
            word = self.word()
            if not word.parts and not keyed:
                raise Unclear("unterminated array")
            words.append(word)

    def _key(self, words: list[Word]) -> bool:
        """`[expression]=` before an array value, rather than a glob that starts with a bracket."""
        before = self.position
        if not self.take("["):
            return False
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

    def _declared(self, assignment: Assignment, start: int) -> Word:
        """The `x=1` in `declare x=1`, which is not split. Braces in it would make it several."""
        value = assignment.value
        inner: list[Part] = value.parts if isinstance(value, Word) else [Text("", quoted=True)]
        if any(isinstance(part, Text) and not part.quoted and "{" in part.text for part in inner):
            raise Unclear("braces in a declaration are not supported")
        return Word([Text(f"{assignment.name}=", quoted=True), *inner], start, self.position)
