"""Parser for lists, pipelines and simple commands."""

from __future__ import annotations

import re

from sandbox_server.policy.bash.compounds import Compounds
from sandbox_server.policy.bash.redirections import Redirections
from sandbox_server.policy.bash.source import Effort, Source
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
from sandbox_server.policy.bash.words import Words

_CLOSERS = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "in", "}"})
_RESERVED = re.compile(
    r"(?:if|then|else|elif|fi|while|until|for|select|case|esac|do|done|in|function|time|coproc"
    r"|\{|\}|!|\[\[)(?=[ \t\n;&|<>()]|\\\n|\Z)"
)
_OPENERS = frozenset({"if", "while", "until", "for", "select", "case", "function", "{", "[["})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=\[|\+?=)")
_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")
_DECLARING = frozenset({"declare", "typeset", "local", "readonly", "export"})


class Parser:
    """Parses one source. After Unclear, `whole` has the commands parsed so far."""

    def __init__(
        self, text: str, effort: Effort | None = None, *, pinned: tuple[int, int] | None = None
    ) -> None:
        self.src = Source(text, effort, pinned=pinned)
        self.words = Words(self.src, self)
        self.redirections = Redirections(self.src, self.words)
        self.compounds = Compounds(self)
        self.whole = Sequence([])

    def parse(self) -> Sequence:
        """Parse all of the source. Raises Unclear."""
        self.sequence(self.whole)
        if self.src.position < self.src.end:
            raise self.src.unclear(f"unexpected {self.src.next()!r}")
        self.redirections.read_heredocs()
        return self.whole

    def substituted(self) -> Sequence:
        outer, self.redirections.pending = self.redirections.pending, []
        self.redirections.outer_pending += len(outer)
        body = self.sequence(Sequence([]))
        if self.src.next() != ")":
            raise self.src.unclear("unterminated $( or <(")
        if self.redirections.pending:
            raise self.src.unclear("heredoc without a body in a substitution")
        self.src.position += 1
        self.redirections.pending = outer
        self.redirections.outer_pending -= len(outer)
        return body

    def between(self, start: int, end: int) -> Sequence:
        before = self.src.position, self.src.end, self.redirections.pending
        self.src.position, self.src.end, self.redirections.pending = start, end, []
        body = self.sequence(Sequence([]))
        if self.src.position < self.src.end or self.redirections.pending:
            raise self.src.unclear("invalid command between backticks")
        self.src.position, self.src.end, self.redirections.pending = before
        return body

    def nested(self, text: str, start: int) -> Sequence:
        return Parser(text, self.src.effort, pinned=self.src.pinned or (start, start + 1)).parse()

    # Lists and pipelines

    def sequence(self, made: Sequence, ends: frozenset[str] = frozenset()) -> Sequence:
        """Commands up to one of the reserved words `ends`, a closing parenthesis or the end."""
        while True:
            self.redirections.skip_lines()
            if (
                self.src.position >= self.src.end
                or self.src.next() == ")"
                or self.src.looking_at(";;")
            ):
                return made
            if self.src.looking_at(";&"):
                return made
            reserved = self.reserved()
            if reserved in ends:
                return made
            if reserved in _CLOSERS:
                raise self.src.unclear(f"unexpected {reserved}")
            self._and_or(made)

    def _and_or(self, made: Sequence) -> None:
        """A chain of pipelines, and the separator after it."""
        first = len(made.items)
        how = How.ALWAYS
        while True:
            made.items.append((self._pipeline(), how))
            if not (self.src.looking_at("&&") or self.src.looking_at("||")):
                break
            self.src.position += 2
            how = How.MAYBE
            self.redirections.skip_lines()
        separator = self.src.next()
        if separator == ";" and not (self.src.looking_at(";;") or self.src.looking_at(";&")):
            self.src.position += 1
            self.src.not_split(";", ";&")
        elif separator == "&":
            self.src.position += 1
            self.src.not_split("&", "&>")
            for index in range(first, len(made.items)):
                made.items[index] = made.items[index][0], How.BACKGROUND
        elif separator not in ("\n", ")", "", ";"):
            raise self.src.unclear(f"unexpected {separator!r}")

    def _pipeline(self) -> Node:
        self._prefixes()
        members = [self.command()]
        while True:
            self.redirections.skip_gap()
            if self.src.next() != "|" or self.src.looking_at("||"):
                break
            self.src.position += 2 if self.src.looking_at("|&") else 1
            self.src.not_split("|", "|&")
            self.redirections.skip_lines()
            members.append(self.command())
        return members[0] if len(members) == 1 else Pipeline(members)

    def _prefixes(self) -> None:
        """Skip `!` and `time`, which belong to the pipeline."""
        while (reserved := self.reserved()) in ("!", "time"):
            self.src.position += len(reserved or "")
            self.src.skip_blanks()
            if reserved == "time":
                for option in ("-p", "--"):
                    if self.src.looking_at(option) and self.src.looking_at(" ", 2):
                        self.src.position += 2
                        self.src.skip_blanks()
        if self.src.position >= self.src.end or self.src.next() in "\n;&":
            raise self.src.unclear("expected a command after ! or time")

    def command(self) -> Node:
        self.src.effort.spend(2, self.src.position)
        self.src.skip_blanks()
        reserved = self.reserved()
        if self.src.next() == "(" or reserved in _OPENERS:
            return self.compounds.compound(reserved or "(")
        if reserved == "coproc":
            return self.compounds.coproc()
        if reserved in _CLOSERS or reserved in ("!", "time"):
            raise self.src.unclear(f"unexpected {reserved}")
        return self._simple()

    # Simple commands

    def _simple(self) -> Node:
        start = self.src.position
        made = Simple("", start, start, [], [], [])
        declaring = False
        while True:
            self.src.skip_blanks()
            end = self.src.position
            if self.src.next() == "#":
                break
            if self.redirections.redirect(made.redirects):
                continue
            if not made.words and self._assignment(made.assignments):
                continue
            if declaring:
                declared: list[Assignment] = []
                if self._assignment(declared):
                    made.words.append(self._declared(declared[0], end))
                    made.assignments.extend(d for d in declared if isinstance(d.value, list))
                    continue
            word = self.words.word()
            if not word.parts:
                break
            made.words.append(word)
            if len(made.words) == 1 and not made.assignments and not made.redirects:
                if self.parentheses():
                    return self.compounds.function(word.bare(), start)
                if (word.bare() or "") in _CLOSERS:
                    raise self.src.unclear("a reserved word is split by a line continuation")
            declaring = declaring or (len(made.words) == 1 and word.bare() in _DECLARING)
        if not (made.words or made.assignments or made.redirects):
            raise self.src.unclear(f"unexpected {self.src.next() or 'end of input'!r}")
        last = self._last(start)
        made.start, made.end = self.src.pinned or (start, last)
        made.text = self.src.text[start:last]
        return made

    def _last(self, start: int) -> int:
        """End of the text before here without trailing blanks, unless escaped."""
        text = self.src.text[start : self.src.position]
        plain = text.rstrip(" \t")
        escaped = plain.endswith("\\") and len(plain) < len(text)
        return start + max(len(plain) + escaped, 1)

    def _assignment(self, made: list[Assignment]) -> bool:
        found = _ASSIGNED.match(self.src.text, self.src.position, self.src.end)
        if not found:
            return False
        before = self.src.position
        self.src.position = found.end()
        subscript = None
        if self.src.next() == "[":
            self.src.position += 1
            inner = self.words.subscript()
            subscript = inner if isinstance(inner, Arithmetic) else None
        append = self.src.looking_at("+=")
        if not (append or self.src.looking_at("=")):
            self.src.position = before
            return False
        self.src.position += 2 if append else 1
        value = self._array() if self.src.next() == "(" else self.words.word()
        made.append(Assignment(found[0], value, append, subscript))
        return True

    def _array(self) -> list[Word]:
        self.src.position += 1
        words: list[Word] = []
        while True:
            self.redirections.skip_lines()
            if self.src.next() == ")":
                self.src.position += 1
                return words
            keyed = self._key(words)
            word = self.words.word()
            if not word.parts and not keyed:
                raise self.src.unclear("unterminated array")
            words.append(word)

    def _key(self, words: list[Word]) -> bool:
        """`[expression]=` before an array value, rather than a glob that starts with a bracket."""
        before = self.src.position
        if self.src.next() != "[":
            return False
        self.src.position += 1
        try:
            inner = self.words.subscript()
        except TooMuch:
            raise
        except Unclear:
            inner = ""
        if not self.src.looking_at("=") or not isinstance(inner, Arithmetic):
            self.src.position = before
            return False
        words.append(Word([inner], before, self.src.position))
        self.src.position += 1
        return True

    def reserved(self) -> str | None:
        found = _RESERVED.match(self.src.text, self.src.position, self.src.end)
        return found[0] if found else None

    def expect(self, *words: str) -> str:
        self.redirections.skip_lines()
        reserved = self.reserved()
        if reserved is None or reserved not in words:
            raise self.src.unclear(f"expected {' or '.join(words)}")
        self.src.position += len(reserved)
        return reserved

    def parentheses(self) -> bool:
        found = _PARENTHESES.match(self.src.text, self.src.position, self.src.end)
        if found:
            self.src.position = found.end()
        elif self.src.next() == "(":
            raise self.src.unclear("unexpected '('")
        return bool(found)

    def _declared(self, assignment: Assignment, start: int) -> Word:
        """The `x=1` in `declare x=1`, which is not split. Braces in it would make it several."""
        value = assignment.value
        inner: list[Part] = value.parts if isinstance(value, Word) else [Text("", quoted=True)]
        if any(isinstance(part, Text) and not part.quoted and "{" in part.text for part in inner):
            raise self.src.unclear("braces in a declaration are not supported")
        return Word([Text(f"{assignment.name}=", quoted=True), *inner], start, self.src.position)


def parse(text: str) -> Sequence:
    """Parse bash source. Raises Unclear."""
    return Parser(text).parse()


__all__ = ["Parser", "Unclear", "parse"]
