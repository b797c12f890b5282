"""Words: quotes, expansions, substitutions.

Made for judging, not for running: anything ambiguous is Unclear. Regular expressions take the long
runs of ordinary characters; every other step is counted and bounded.
"""

from __future__ import annotations

import re
from typing import Protocol

from sandbox_server.policy.bash.escapes import ansi_c
from sandbox_server.policy.bash.source import BY_HAND, Source
from sandbox_server.policy.bash.syntax import (
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

_RUN = re.compile(r"[^ \t\n\\'\"$`;&|<>()]+")
_QUOTED_RUN = re.compile(r'[^"\\$`]+')
_BODY_RUN = re.compile(r"[^\\$`]+")
LONG_TEXT = 1024
"""Text is appended to a part up to this length, then to a new one: appending copies."""
_BRACED_RUN = re.compile(r"[^}\\'\"$`]+")
_BRACED_QUOTED_RUN = re.compile(r"[^}\\\"$`]+")
_ARITHMETIC_RUN = re.compile(r"[^()\[\]\\'\"$`]+")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]")
_BRACED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|/[/#%]?|\^\^?|,,?|@[A-Za-z]|:")
_BACKTICKS = re.compile(r"[^`\\]*(?:\\.[^`\\]*)*", re.DOTALL)
_ANSI_C = re.compile(r"[^'\\]*(?:\\.[^'\\]*)*", re.DOTALL)


class Commands(Protocol):
    """Parses the commands in a substitution."""

    def substituted(self) -> Sequence:
        """The commands up to and including a closing parenthesis."""

    def between(self, start: int, end: int) -> Sequence:
        """The commands between two positions."""

    def nested(self, text: str, start: int) -> Sequence:
        """The commands of another text, whose position in this one is `start`."""


class Words:
    """Parses words."""

    def __init__(self, src: Source, commands: Commands) -> None:
        self.src = src
        self._commands = commands

    # Words

    def word(self) -> Word:
        """The next word; without parts if there is none."""
        src = self.src
        src.tick()
        start = src.position
        parts: list[Part] = []
        while src.position < src.end:
            if text := src.run(_RUN):
                add(parts, text, quoted=False)
                continue
            character = src.text[src.position]
            if character in " \t\n;&|)":
                break
            if character == "(":
                if not _opens_pattern(parts):
                    break
                self._pattern_group(parts)
            elif character in "<>":
                if not src.looking_at("(", 1):
                    break
                src.position += 2
                parts.append(Substitution(self._deeper(), quoted=True, process=True))
            else:
                self.special(character, parts)
        return Word(parts, start, src.position)

    def special(self, character: str, parts: list[Part]) -> None:
        """A quote, an escape or an expansion outside of quotes."""
        self.src.tick()
        if character == "\\":
            self._escape(parts)
        elif character == "'":
            parts.append(self._single_quoted())
        elif character == '"':
            self.src.position += 1
            self._double_quoted(parts)
        elif character == "$":
            self.dollar(parts, quoted=False)
        else:
            self._backticks(parts, quoted=False)

    def _escape(self, parts: list[Part]) -> None:
        following = self.src.text[self.src.position + 1 : min(self.src.position + 2, self.src.end)]
        self.src.position += 1 + len(following)
        if following != "\n":
            add(parts, following or "\\", quoted=True)

    def _single_quoted(self) -> Text:
        close = self.src.text.find("'", self.src.position + 1, self.src.end)
        if close < 0:
            raise self.src.unclear("unterminated single quote")
        text = self.src.text[self.src.position + 1 : close]
        self.src.position = close + 1
        return Text(text, quoted=True)

    def _double_quoted(self, parts: list[Part]) -> None:
        """After the opening quote. An empty string is a part too, since it makes an argument."""
        add(parts, "", quoted=True)
        while self.src.position < self.src.end:
            self.src.tick()
            if text := self.src.run(_QUOTED_RUN):
                add(parts, text, quoted=True)
                continue
            if self.src.next() == '"':
                self.src.position += 1
                return
            self._special_in_quotes(parts, '$`"\\')
        raise self.src.unclear("unterminated double quote")

    def _special_in_quotes(self, parts: list[Part], escapable: str) -> None:
        character = self.src.next()
        if character == "\\":
            following = self.src.text[
                self.src.position + 1 : min(self.src.position + 2, self.src.end)
            ]
            self.src.position += 1 + len(following)
            if following != "\n":
                kept = following if following and following in escapable else "\\" + following
                add(parts, kept, quoted=True)
        elif character == "$":
            self.dollar(parts, quoted=True)
        else:
            self._backticks(parts, quoted=True)

    def heredoc_body(self, start: int, end: int) -> Word:
        """The body of an unquoted heredoc between two positions, with its expansions."""
        before = self.src.position, self.src.end
        self.src.position, self.src.end = start, end
        parts: list[Part] = [Text("", quoted=True)]
        while self.src.position < self.src.end:
            self.src.tick()
            if text := self.src.run(_BODY_RUN):
                add(parts, text, quoted=True)
            else:
                self._special_in_quotes(parts, "$`\\")
        self.src.position, self.src.end = before
        return Word(parts, start, end)

    def _pattern_group(self, parts: list[Part]) -> None:
        """Extended globs such as `@(a|b)`, taken as a pattern without parsing the inside."""
        self.src.effort.enter(self.src.position)
        self.src.position += 1
        add(parts, "(", quoted=False)
        while True:
            inner = self.word()
            parts.extend(inner.parts)
            character = self.src.next()
            if character not in ("|", ")", "("):
                raise self.src.unclear("unterminated extended glob")
            if character == "(":
                self._pattern_group(parts)
                continue
            self.src.position += 1
            add(parts, character, quoted=False)
            if character == ")":
                self.src.effort.depth -= 1
                return

    def _deeper(self) -> Sequence:
        self.src.effort.enter(self.src.position)
        body = self._commands.substituted()
        self.src.effort.depth -= 1
        return body

    # Expansions

    def dollar(self, parts: list[Part], *, quoted: bool) -> None:
        self.src.tick()
        self.src.position += 1
        character = self.src.next()
        if character == "(":
            parts.append(self._parenthesised(quoted=quoted))
        elif character == "{":
            self.src.position += 1
            parts.append(self._braced(quoted=quoted))
        elif character == "[":
            self.src.position += 1
            parts.append(Arithmetic(self._expression("]"), quoted=quoted))
        elif character == "'" and not quoted:
            parts.append(self._ansi_c())
        elif character == '"' and not quoted:
            self.src.position += 1
            self._double_quoted(parts)
        elif name := self.src.run(_PARAMETER):
            parts.append(Parameter(name, quoted))
            if self.src.looking_at("\\\n") and name[0].isidentifier():
                raise self.src.unclear("line continuation within a variable name")
        elif self.src.looking_at("\\\n"):
            raise self.src.unclear("line continuation after a dollar sign")
        else:
            add(parts, "$", quoted=quoted)

    def _parenthesised(self, *, quoted: bool) -> Part:
        """`$((…))` if it parses as an expression, else `$(…)`, as in bash."""
        self.src.position += 1
        if self.src.next() == "(":
            expression = self.expression_in_parentheses()
            if expression is not None:
                return Arithmetic(expression, quoted=quoted)
        self.src.not_split("$(", "(")
        return Substitution(self._deeper(), quoted=quoted)

    def expression_in_parentheses(self) -> list[Part] | None:
        """From the second parenthesis: the expression up to `))`; None, without moving, if none."""
        before = self.src.position
        self.src.position += 1
        try:
            parts = self._expression(")")
        except TooMuch:
            raise
        except Unclear:
            self.src.position = before
            return None
        if self.src.next() == ")":
            self.src.position += 1
            return parts
        self.src.position = before
        return None

    def _expression(self, closer: str) -> list[Part]:
        self.src.effort.enter(self.src.position)
        opener = "(" if closer == ")" else "["
        parts: list[Part] = []
        nesting = 0
        while True:
            self.src.tick()
            add(parts, self.src.run(_ARITHMETIC_RUN), quoted=True)
            character = self.src.next()
            if character in ("", "'"):
                raise self.src.unclear("arithmetic expression is unterminated or contains quotes")
            if character in "()[]":
                self.src.position += 1
                nesting += (character == opener) - (character == closer)
                if nesting < 0:
                    break
                add(parts, character, quoted=True)
            elif character == '"':
                self.src.position += 1
                self._double_quoted(parts)
            else:
                self._special_in_quotes(parts, '$`"\\')
        self.src.effort.depth -= 1
        return parts

    def subscript(self) -> str | Arithmetic:
        """After the opening bracket."""
        for every in "@*":
            if self.src.looking_at(every + "]"):
                self.src.position += 2
                return every
        return Arithmetic(self._expression("]"))

    def _braced(self, *, quoted: bool) -> Parameter:
        """After `${`."""
        prefix = ""
        if self.src.next() in ("!", "#") and _BRACED.match(
            self.src.text, self.src.position + 1, self.src.end
        ):
            prefix = self.src.next()
            self.src.position += 1
        name = self.src.run(_BRACED)
        if not name:
            raise self.src.unclear("expected a name after ${")
        made = Parameter(name, quoted)
        made.prefix = "!" if prefix == "!" else "#" if prefix else ""
        if self.src.next() == "[":
            self.src.position += 1
            made.subscript = self.subscript()
        made.operator = self.src.run(_OPERATOR)
        if (
            self.src.next() != "}"
            and not made.operator
            and not (made.prefix and self.src.next() in "@*")
        ):
            raise self.src.unclear("unknown operator in ${…}")
        made.word = self._braced_word(quoted=quoted, operator=made.operator)
        return made

    def _braced_word(self, *, quoted: bool, operator: str) -> list[Part]:
        """Up to the closing brace. In double quotes, single quotes in `${x:-…}` are literal."""
        plain = quoted and operator.lstrip(":")[:1] in ("-", "=", "?", "+")
        pattern = _BRACED_QUOTED_RUN if plain else _BRACED_RUN
        parts: list[Part] = []
        while True:
            self.src.tick()
            add(parts, self.src.run(pattern), quoted=quoted)
            character = self.src.next()
            if not character:
                raise self.src.unclear("unterminated ${")
            if character == "}":
                self.src.position += 1
                return parts
            if quoted and character in "\\$`":
                self._special_in_quotes(parts, '$`"\\}')
            else:
                self.special(character, parts)

    def _ansi_c(self) -> Text:
        self.src.position += 1
        text = self.src.run(_ANSI_C)
        if self.src.next() != "'":
            raise self.src.unclear("unterminated $'")
        self.src.position += 1
        self.src.effort.spend(4 * text.count("\\") // BY_HAND, self.src.position)
        return Text(ansi_c(text), quoted=True)

    def _backticks(self, parts: list[Part], *, quoted: bool) -> None:
        self.src.tick()
        start = self.src.position
        found = _BACKTICKS.match(self.src.text, start + 1, self.src.end)
        if found is None or not self.src.text.startswith("`", found.end(), self.src.end):
            raise self.src.unclear("unterminated backtick")
        inner = found[0]
        self.src.effort.enter(self.src.position)
        if "\\" in inner:
            self.src.effort.spend(len(inner) // BY_HAND, start)
            special = r'\\([$`\\"])' if quoted else r"\\([$`\\])"
            body = self._commands.nested(re.sub(special, r"\1", inner), start)
        else:
            body = self._commands.between(start + 1, found.end())
        self.src.effort.depth -= 1
        self.src.position = found.end() + 1
        parts.append(Substitution(body, quoted=quoted))


def add(parts: list[Part], text: str, *, quoted: bool) -> None:
    """Append text, merging short neighbours; an empty quoted one is kept as an argument."""
    if not text and not quoted:
        return
    if parts:
        last = parts[-1]
        if type(last) is Text and last.quoted == quoted and len(last.text) < LONG_TEXT:
            last.text += text
            return
    parts.append(Text(text, quoted))


def _opens_pattern(parts: list[Part]) -> bool:
    last = parts[-1] if parts else None
    return type(last) is Text and not last.quoted and last.text[-1] in "?*+@!"
