"""Bash source into words: quotes, expansions, substitutions.

Written for judging, not for running: whatever bash could read in two ways is Unclear. Regular
expressions take the long runs of ordinary characters, so the time is linear in the length; the work
that may be repeated is counted and bounded.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from sandbox_server.policy.escapes import ansi_c
from sandbox_server.policy.syntax import (
    Arithmetic,
    Parameter,
    Part,
    Sequence,
    Substitution,
    Text,
    TooMuch,
    Unclear,
    Word,
)

MAX_DEPTH = 30
MAX_WORK = 20_000

BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_RUN = re.compile(r"[^ \t\n\\'\"$`;&|<>()]+")
_QUOTED_RUN = re.compile(r'[^"\\$`]+')
_BODY_RUN = re.compile(r"[^\\$`]+")
_BRACED_RUN = re.compile(r"[^}\\'\"$`]+")
_BRACED_QUOTED_RUN = re.compile(r"[^}\\\"$`]+")
_ARITHMETIC_RUN = re.compile(r"[^()\[\]\\'\"$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]")
_BRACED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|/[/#%]?|\^\^?|,,?|@[A-Za-z]|:")
_BACKTICKS = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL)


@dataclass(slots=True)
class Effort:
    """Shared by a parser and those it starts: how deep, and how much so far."""

    work: int = 0
    depth: int = 0


class Lexer(ABC):
    """Reads words from one source. `end` is where the part that is looked at ends."""

    def __init__(
        self, source: str, effort: Effort | None = None, *, pinned: tuple[int, int] | None = None
    ) -> None:
        self.source = source
        self.position = 0
        self.end = len(source)
        self.effort = effort or Effort()
        self.pinned = pinned
        """Where the whole source stands in another one, whose positions count."""

    @abstractmethod
    def substituted(self) -> Sequence:
        """The commands up to a closing parenthesis, which is taken too."""

    @abstractmethod
    def nested(self, source: str, start: int) -> Sequence:
        """The commands of another source, which stood from `start` on in this one."""

    # Characters

    def unclear(self, why: str) -> Unclear:
        return Unclear(why, self.pinned[0] if self.pinned else self.position)

    def tick(self) -> None:
        self.effort.work += 1
        if self.effort.work > MAX_WORK:
            raise TooMuch("there is too much in it to look at", self.position)

    def looking_at(self, text: str, ahead: int = 0) -> bool:
        return self.source.startswith(text, self.position + ahead, self.end)

    def next(self) -> str:
        """The character here; empty at the end."""
        return self.source[self.position] if self.position < self.end else ""

    def run(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.source, self.position, self.end)
        if found is None:
            return ""
        self.position = found.end()
        return found[0]

    def skip_blanks(self) -> None:
        found = BLANKS.match(self.source, self.position, self.end)
        if found:
            self.position = found.end()

    def not_split(self, after: str, characters: str) -> None:
        """An operator that a line continuation may cut in two is not worth understanding."""
        at = self.position
        while self.source.startswith("\\\n", at, self.end):
            at += 2
        if at > self.position and at < self.end and self.source[at] in characters:
            raise self.unclear(f"a line continuation within an operator after {after}")

    # Words

    def word(self) -> Word:
        """The word here. Its parts are empty where there is none."""
        self.tick()
        start = self.position
        parts: list[Part] = []
        while self.position < self.end:
            if text := self.run(_RUN):
                _add(parts, text, quoted=False)
                continue
            character = self.source[self.position]
            if character in " \t\n;&|)":
                break
            if character == "(":
                if not _opens_pattern(parts):
                    break
                self._pattern_group(parts)
            elif character in "<>":
                if not self.looking_at("(", 1):
                    break
                self.position += 2
                parts.append(Substitution(self._deeper(), quoted=True, process=True))
            else:
                self._special(character, parts)
        return Word(parts, start, self.position)

    def _special(self, character: str, parts: list[Part]) -> None:
        """A quote, an escape or an expansion outside of quotes."""
        if character == "\\":
            self._escape(parts)
        elif character == "'":
            parts.append(self._single_quoted())
        elif character == '"':
            self.position += 1
            self._double_quoted(parts)
        elif character == "$":
            self.dollar(parts, quoted=False)
        else:
            self._backticks(parts, quoted=False)

    def _escape(self, parts: list[Part]) -> None:
        following = self.source[self.position + 1 : min(self.position + 2, self.end)]
        self.position += 1 + len(following)
        if following != "\n":
            _add(parts, following or "\\", quoted=True)

    def _single_quoted(self) -> Text:
        close = self.source.find("'", self.position + 1, self.end)
        if close < 0:
            raise self.unclear("a single quote is never closed")
        text = self.source[self.position + 1 : close]
        self.position = close + 1
        return Text(text, quoted=True)

    def _double_quoted(self, parts: list[Part]) -> None:
        """After the opening quote. An empty string is a part too: it makes an argument."""
        _add(parts, "", quoted=True)
        while self.position < self.end:
            self.tick()
            if text := self.run(_QUOTED_RUN):
                _add(parts, text, quoted=True)
                continue
            if self.next() == '"':
                self.position += 1
                return
            self._special_in_quotes(parts, '$`"\\')
        raise self.unclear("a double quote is never closed")

    def _special_in_quotes(self, parts: list[Part], escapable: str) -> None:
        character = self.next()
        if character == "\\":
            following = self.source[self.position + 1 : min(self.position + 2, self.end)]
            self.position += 1 + len(following)
            if following != "\n":
                kept = following if following and following in escapable else "\\" + following
                _add(parts, kept, quoted=True)
        elif character == "$":
            self.dollar(parts, quoted=True)
        else:
            self._backticks(parts, quoted=True)

    def heredoc_body(self, start: int, end: int) -> Word:
        """The expansions in an unquoted heredoc, which is everything between two positions."""
        before = self.position, self.end
        self.position, self.end = start, end
        parts: list[Part] = [Text("", quoted=True)]
        while self.position < self.end:
            self.tick()
            if text := self.run(_BODY_RUN):
                _add(parts, text, quoted=True)
            else:
                self._special_in_quotes(parts, "$`\\")
        self.position, self.end = before
        return Word(parts, start, end)

    def _pattern_group(self, parts: list[Part]) -> None:
        """`@(a|b)` and its kin: a pattern, whatever stands in it."""
        self._enter()
        self.position += 1
        _add(parts, "(", quoted=False)
        while True:
            inner = self.word()
            parts.extend(inner.parts)
            character = self.next()
            if character not in ("|", ")", "("):
                raise self.unclear("a pattern is never closed")
            if character == "(":
                self._pattern_group(parts)
                continue
            self.position += 1
            _add(parts, character, quoted=False)
            if character == ")":
                self.effort.depth -= 1
                return

    # Expansions

    def dollar(self, parts: list[Part], *, quoted: bool) -> None:
        self.tick()
        self.position += 1
        character = self.next()
        if character == "(":
            parts.append(self._parenthesised(quoted=quoted))
        elif character == "{":
            self.position += 1
            parts.append(self._braced(quoted=quoted))
        elif character == "[":
            self.position += 1
            parts.append(Arithmetic(self._expression("]"), quoted=quoted))
        elif character == "'" and not quoted:
            parts.append(self._ansi_c())
        elif character == '"' and not quoted:
            self.position += 1
            self._double_quoted(parts)
        elif name := self.run(_PARAMETER):
            parts.append(Parameter(name, quoted))
            if self.looking_at("\\\n") and name[0].isidentifier():
                raise self.unclear("a line continuation within a name")
        elif self.looking_at("\\\n"):
            raise self.unclear("a line continuation after a dollar sign")
        else:
            _add(parts, "$", quoted=quoted)

    def _parenthesised(self, *, quoted: bool) -> Part:
        """`$((…))` where it can be read as an expression, else `$(…)`, as bash does."""
        self.position += 1
        if self.next() == "(":
            expression = self.expression_in_parentheses()
            if expression is not None:
                return Arithmetic(expression, quoted=quoted)
        self.not_split("$(", "(")
        return Substitution(self._deeper(), quoted=quoted)

    def expression_in_parentheses(self) -> list[Part] | None:
        """At the second of two parentheses: the expression up to `))`, or None and not moved."""
        before = self.position
        self.position += 1
        try:
            parts = self._expression(")")
        except TooMuch:
            raise
        except Unclear:
            self.position = before
            return None
        if self.next() == ")":
            self.position += 1
            return parts
        self.position = before
        return None

    def _expression(self, closer: str) -> list[Part]:
        self._enter()
        opener = "(" if closer == ")" else "["
        parts: list[Part] = []
        nesting = 0
        while True:
            self.tick()
            _add(parts, self.run(_ARITHMETIC_RUN), quoted=True)
            character = self.next()
            if character in ("", "'"):
                raise self.unclear("an expression is never closed, or has quotes in it")
            if character in "()[]":
                self.position += 1
                nesting += (character == opener) - (character == closer)
                if nesting < 0:
                    break
                _add(parts, character, quoted=True)
            elif character == '"':
                self.position += 1
                self._double_quoted(parts)
            else:
                self._special_in_quotes(parts, '$`"\\')
        self.effort.depth -= 1
        return parts

    def subscript(self) -> str | Arithmetic:
        """After the opening bracket."""
        for every in "@*":
            if self.looking_at(every + "]"):
                self.position += 2
                return every
        return Arithmetic(self._expression("]"))

    def _braced(self, *, quoted: bool) -> Parameter:
        """After `${`."""
        prefix = ""
        if self.next() in ("!", "#") and _BRACED.match(self.source, self.position + 1, self.end):
            prefix = self.next()
            self.position += 1
        name = self.run(_BRACED)
        if not name:
            raise self.unclear("an expansion without a name")
        made = Parameter(name, quoted)
        made.prefix = "!" if prefix == "!" else "#" if prefix else ""
        if self.next() == "[":
            self.position += 1
            made.subscript = self.subscript()
        made.operator = self.run(_OPERATOR)
        if self.next() != "}" and not made.operator and not (made.prefix and self.next() in "@*"):
            raise self.unclear("an expansion that is not known")
        made.word = self._braced_word(quoted=quoted, operator=made.operator)
        return made

    def _braced_word(self, *, quoted: bool, operator: str) -> list[Part]:
        """Up to the closing brace. In double quotes, single quotes are plain in `${x:-…}`."""
        plain = quoted and operator.lstrip(":")[:1] in ("-", "=", "?", "+")
        pattern = _BRACED_QUOTED_RUN if plain else _BRACED_RUN
        parts: list[Part] = []
        while True:
            self.tick()
            _add(parts, self.run(pattern), quoted=quoted)
            character = self.next()
            if not character:
                raise self.unclear("a brace is never closed")
            if character == "}":
                self.position += 1
                return parts
            if quoted and character in "\\$`":
                self._special_in_quotes(parts, '$`"\\}')
            else:
                self._special(character, parts)

    def _ansi_c(self) -> Text:
        self.position += 1
        at = self.position
        while at < self.end and self.source[at] != "'":
            at += 2 if self.source[at] == "\\" else 1
        if at >= self.end:
            raise self.unclear("a quote is never closed")
        text = ansi_c(self.source[self.position : at])
        self.position = at + 1
        return Text(text, quoted=True)

    def _backticks(self, parts: list[Part], *, quoted: bool) -> None:
        start = self.position
        found = _BACKTICKS.match(self.source, start + 1, self.end)
        if found is None or not self.source.startswith("`", found.end(), self.end):
            raise self.unclear("a backtick is never closed")
        inner = found[0]
        self._enter()
        if "\\" in inner:
            special = r'\\([$`\\"])' if quoted else r"\\([$`\\])"
            body = self.nested(re.sub(special, r"\1", inner), start)
        else:
            body = self._between(start + 1, found.end())
        self.effort.depth -= 1
        self.position = found.end() + 1
        parts.append(Substitution(body, quoted=quoted))

    @abstractmethod
    def _between(self, start: int, end: int) -> Sequence:
        """The commands between two positions."""

    def _enter(self) -> None:
        self.effort.depth += 1
        if self.effort.depth > MAX_DEPTH:
            raise TooMuch("it is nested too deeply", self.position)

    def _deeper(self) -> Sequence:
        self._enter()
        body = self.substituted()
        self.effort.depth -= 1
        return body


def _add(parts: list[Part], text: str, *, quoted: bool) -> None:
    """Neighbours of one kind are one part; an empty quoted one is kept, it makes an argument."""
    if not text and not quoted:
        return
    if parts:
        last = parts[-1]
        if type(last) is Text and last.quoted == quoted:
            last.text += text
            return
    parts.append(Text(text, quoted))


def _opens_pattern(parts: list[Part]) -> bool:
    last = parts[-1] if parts else None
    return type(last) is Text and not last.quoted and last.text[-1] in "?*+@!"
