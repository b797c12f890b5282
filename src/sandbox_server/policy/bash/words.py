"""Words: quotes, expansions, substitutions.

Made for judging, not for running: anything ambiguous is Unclear. Regular expressions take the long
runs of ordinary characters; every other step is counted and bounded.
"""

from __future__ import annotations

import re

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


class Words(Source):
    """Parses words. The commands in them are for the whole parser."""

    def substituted(self) -> Sequence:
        """The commands up to and including a closing parenthesis."""
        raise NotImplementedError

    def between(self, start: int, end: int) -> Sequence:
        """The commands between two positions."""
        raise NotImplementedError

    def nested(self, text: str, start: int) -> Sequence:
        """The commands of another text, whose position in this one is `start`."""
        raise NotImplementedError

    # Words

    def word(self) -> Word:
        """The next word; without parts if there is none."""
        self.tick()
        start = self.position
        parts: list[Part] = []
        while self.position < self.end:
            if text := self.run(_RUN):
                add(parts, text, quoted=False)
                continue
            character = self.text[self.position]
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
                self.special(character, parts)
        return Word(parts, start, self.position)

    def special(self, character: str, parts: list[Part]) -> None:
        """A quote, an escape or an expansion outside of quotes."""
        self.tick()
        if character == "\\":
            self._escape(parts)
        elif character == "'":
            parts.append(self._single_quoted())
        elif self.take('"'):
            self._double_quoted(parts)
        elif character == "$":
            self.dollar(parts, quoted=False)
        else:
            self._backticks(parts, quoted=False)

    def _escape(self, parts: list[Part]) -> None:
        following = self.text[self.position + 1 : min(self.position + 2, self.end)]
        self.position += 1 + len(following)
        if following != "\n":
            add(parts, following or "\\", quoted=True)

    def _single_quoted(self) -> Text:
        close = self.text.find("'", self.position + 1, self.end)
        if close < 0:
            raise Unclear("unterminated single quote")
        text = self.text[self.position + 1 : close]
        self.position = close + 1
        return Text(text, quoted=True)

    def _double_quoted(self, parts: list[Part]) -> None:
        """After the opening quote. An empty string is a part too, since it makes an argument."""
        add(parts, "", quoted=True)
        while self.position < self.end:
            self.tick()
            if text := self.run(_QUOTED_RUN):
                add(parts, text, quoted=True)
                continue
            if self.take('"'):
                return
            self._special_in_quotes(parts, '$`"\\')
        raise Unclear("unterminated double quote")

    def _special_in_quotes(self, parts: list[Part], escapable: str) -> None:
        character = self.next()
        if character == "\\":
            following = self.text[self.position + 1 : min(self.position + 2, self.end)]
            self.position += 1 + len(following)
            if following != "\n":
                kept = following if following and following in escapable else "\\" + following
                add(parts, kept, quoted=True)
        elif character == "$":
            self.dollar(parts, quoted=True)
        else:
            self._backticks(parts, quoted=True)

    def heredoc_body(self, start: int, end: int) -> Word:
        """The body of an unquoted heredoc between two positions, with its expansions."""
        before = self.position, self.end
        self.position, self.end = start, end
        parts: list[Part] = [Text("", quoted=True)]
        while self.position < self.end:
            self.tick()
            if text := self.run(_BODY_RUN):
                add(parts, text, quoted=True)
            else:
                self._special_in_quotes(parts, "$`\\")
        self.position, self.end = before
        return Word(parts, start, end)

    def _pattern_group(self, parts: list[Part]) -> None:
        """Extended globs such as `@(a|b)`, taken as a pattern without parsing the inside."""
        self.effort.enter()
        self.position += 1
        add(parts, "(", quoted=False)
        while True:
            inner = self.word()
            parts.extend(inner.parts)
            character = self.next()
            if character not in ("|", ")", "("):
                raise Unclear("unterminated extended glob")
            if character == "(":
                self._pattern_group(parts)
                continue
            self.position += 1
            add(parts, character, quoted=False)
            if character == ")":
                self.effort.depth -= 1
                return

    def _deeper(self) -> Sequence:
        self.effort.enter()
        body = self.substituted()
        self.effort.depth -= 1
        return body

    # Expansions

    def dollar(self, parts: list[Part], *, quoted: bool) -> None:
        self.tick()
        self.position += 1
        character = self.next()
        if character == "(":
            parts.append(self._parenthesised(quoted=quoted))
        elif self.take("{"):
            parts.append(self._braced(quoted=quoted))
        elif self.take("["):
            parts.append(Arithmetic(self._expression("]"), quoted=quoted))
        elif character == "'" and not quoted:
            parts.append(self._ansi_c())
        elif not quoted and self.take('"'):
            self._double_quoted(parts)
        elif name := self.run(_PARAMETER):
            parts.append(Parameter(name, quoted))
            if self.looking_at("\\\n") and name[0].isidentifier():
                raise Unclear("line continuation within a variable name")
        elif self.looking_at("\\\n"):
            raise Unclear("line continuation after a dollar sign")
        else:
            add(parts, "$", quoted=quoted)

    def _parenthesised(self, *, quoted: bool) -> Part:
        """`$((…))` if it parses as an expression, else `$(…)`, as in bash."""
        self.position += 1
        if self.next() == "(":
            expression = self.expression_in_parentheses()
            if expression is not None:
                return Arithmetic(expression, quoted=quoted)
        self.not_split("$(", "(")
        return Substitution(self._deeper(), quoted=quoted)

    def expression_in_parentheses(self) -> list[Part] | None:
        """From the second parenthesis: the expression up to `))`; None, without moving, if none."""
        before = self.position
        self.position += 1
        try:
            parts = self._expression(")")
        except TooMuch:
            raise
        except Unclear:
            self.position = before
            return None
        if self.take(")"):
            return parts
        self.position = before
        return None

    def _expression(self, closer: str) -> list[Part]:
        self.effort.enter()
        opener = "(" if closer == ")" else "["
        parts: list[Part] = []
        nesting = 0
        while True:
            self.tick()
            add(parts, self.run(_ARITHMETIC_RUN), quoted=True)
            character = self.next()
            if character in ("", "'"):
                raise Unclear("arithmetic expression is unterminated or contains quotes")
            if character in "()[]":
                self.position += 1
                nesting += (character == opener) - (character == closer)
                if nesting < 0:
                    break
                add(parts, character, quoted=True)
            elif self.take('"'):
                self._double_quoted(parts)
            else:
                self._special_in_quotes(parts, '$`"\\')
        self.effort.depth -= 1
        return parts

    def subscript(self) -> str | Arithmetic:
        """After the opening bracket."""
        for every in "@*":
            if self.take(every + "]"):
                return every
        return Arithmetic(self._expression("]"))

    def _braced(self, *, quoted: bool) -> Parameter:
        """After `${`."""
        prefix = ""
        if self.next() in ("!", "#") and _BRACED.match(self.text, self.position + 1, self.end):
            prefix = self.next()
            self.position += 1
        name = self.run(_BRACED)
        if not name:
            raise Unclear("expected a name after ${")
        made = Parameter(name, quoted)
        made.prefix = "!" if prefix == "!" else "#" if prefix else ""
        if self.take("["):
            made.subscript = self.subscript()
        made.operator = self.run(_OPERATOR)
        if self.next() != "}" and not made.operator and not (made.prefix and self.next() in "@*"):
            raise Unclear("unknown operator in ${…}")
        made.word = self._braced_word(quoted=quoted, operator=made.operator)
        return made

    def _braced_word(self, *, quoted: bool, operator: str) -> list[Part]:
        """Up to the closing brace. In double quotes, single quotes in `${x:-…}` are literal."""
        plain = quoted and operator.lstrip(":")[:1] in ("-", "=", "?", "+")
        pattern = _BRACED_QUOTED_RUN if plain else _BRACED_RUN
        parts: list[Part] = []
        while True:
            self.tick()
            add(parts, self.run(pattern), quoted=quoted)
            character = self.next()
            if not character:
                raise Unclear("unterminated ${")
            if self.take("}"):
                return parts
            if quoted and character in "\\$`":
                self._special_in_quotes(parts, '$`"\\}')
            else:
                self.special(character, parts)

    def _ansi_c(self) -> Text:
        self.position += 1
        text = self.run(_ANSI_C)
        if not self.take("'"):
            raise Unclear("unterminated $'")
        self.effort.spend(4 * text.count("\\") // BY_HAND)
        return Text(ansi_c(text), quoted=True)

    def _backticks(self, parts: list[Part], *, quoted: bool) -> None:
        self.tick()
        start = self.position
        found = _BACKTICKS.match(self.text, start + 1, self.end)
        if found is None or not self.text.startswith("`", found.end(), self.end):
            raise Unclear("unterminated backtick")
        inner = found[0]
        self.effort.enter()
        if "\\" in inner:
            self.effort.spend(len(inner) // BY_HAND)
            special = r'\\([$`\\"])' if quoted else r"\\([$`\\])"
            body = self.nested(re.sub(special, r"\1", inner), start)
        else:
            body = self.between(start + 1, found.end())
        self.effort.depth -= 1
        self.position = found.end() + 1
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
