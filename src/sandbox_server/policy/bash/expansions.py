"""The expansions in words: parameters, substitutions, expressions."""

from __future__ import annotations

import re
from abc import abstractmethod

from sandbox_server.policy.bash.effort import BY_HAND
from sandbox_server.policy.bash.escapes import ansi_c
from sandbox_server.policy.bash.lexer import Lexer, add
from sandbox_server.policy.bash.syntax import (
    Arithmetic,
    Parameter,
    Part,
    Sequence,
    Substitution,
    Text,
    TooMuch,
    Unclear,
)

_BRACED_RUN = re.compile(r"[^}\\'\"$`]+")
_BRACED_QUOTED_RUN = re.compile(r"[^}\\\"$`]+")
_ARITHMETIC_RUN = re.compile(r"[^()\[\]\\'\"$`]+")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]")
_BRACED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|/[/#%]?|\^\^?|,,?|@[A-Za-z]|:")
_BACKTICKS = re.compile(r"[^`\\]*(?:\\.[^`\\]*)*", re.DOTALL)
_ANSI_C = re.compile(r"[^'\\]*(?:\\.[^'\\]*)*", re.DOTALL)


class ExpansionLexer(Lexer):
    """Reads words with all that is in them."""

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
            add(parts, "$", quoted=quoted)

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
        self.effort.enter(self.position)
        opener = "(" if closer == ")" else "["
        parts: list[Part] = []
        nesting = 0
        while True:
            self.tick()
            add(parts, self.run(_ARITHMETIC_RUN), quoted=True)
            character = self.next()
            if character in ("", "'"):
                raise self.unclear("an expression is never closed, or has quotes in it")
            if character in "()[]":
                self.position += 1
                nesting += (character == opener) - (character == closer)
                if nesting < 0:
                    break
                add(parts, character, quoted=True)
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
            add(parts, self.run(pattern), quoted=quoted)
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
        text = self.run(_ANSI_C)
        if self.next() != "'":
            raise self.unclear("a quote is never closed")
        self.position += 1
        self.effort.spend(4 * text.count("\\") // BY_HAND, self.position)
        return Text(ansi_c(text), quoted=True)

    def _backticks(self, parts: list[Part], *, quoted: bool) -> None:
        self.tick()
        start = self.position
        found = _BACKTICKS.match(self.source, start + 1, self.end)
        if found is None or not self.source.startswith("`", found.end(), self.end):
            raise self.unclear("a backtick is never closed")
        inner = found[0]
        self.effort.enter(self.position)
        if "\\" in inner:
            self.effort.spend(len(inner) // BY_HAND, start)
            special = r'\\([$`\\"])' if quoted else r"\\([$`\\])"
            body = self.nested(re.sub(special, r"\1", inner), start)
        else:
            body = self._between(start + 1, found.end())
        self.effort.depth -= 1
        self.position = found.end() + 1
        parts.append(Substitution(body, quoted=quoted))

    @abstractmethod
    def nested(self, source: str, start: int) -> Sequence:
        """The commands of another source, which stood from `start` on in this one."""

    @abstractmethod
    def _between(self, start: int, end: int) -> Sequence:
        """The commands between two positions."""
