"""Compound commands: loops, conditions, tests, groups, functions."""

from __future__ import annotations

import re

from sandbox_server.policy.bash.redirections import Redirections
from sandbox_server.policy.bash.syntax import (
    Arithmetic,
    Compound,
    Function,
    How,
    Kind,
    Node,
    Sequence,
    Text,
    Unclear,
    Word,
)

_RESERVED = re.compile(
    r"(?:if|then|else|elif|fi|while|until|for|select|case|esac|do|done|in|function|time|coproc"
    r"|\{|\}|!|\[\[)(?=[ \t\n;&|<>()]|\\\n|\Z)"
)
_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")
_DO = frozenset({"do"})
_DONE = frozenset({"done"})
_THEN = frozenset({"then"})
_BRANCH = frozenset({"elif", "else", "fi"})
_FI = frozenset({"fi"})
_BRACE = frozenset({"}"})
_ESAC = frozenset({"esac"})
_BODIES = frozenset({"{", "[[", "if", "for", "select", "while", "until", "case"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=[ \t\n;]|\\\n|\Z)")
_FUNCTION_NAME = re.compile(r"[^ \t\n;&|<>()'\"$`\\]+")
_TEST_END = re.compile(r"\]\](?=[ \t\n;&|<>()]|\\\n|\Z)")
_TEST_OPERATOR = re.compile(r"&&|\|\||[()<>]")
_REGEX_RUN = re.compile(r"[^ \t\n\\'\"$`()]+")


class Compounds(Redirections):
    """Parses what starts with a parenthesis or a reserved word. Their bodies are for the whole
    parser."""

    def sequence(self, made: Sequence, ends: frozenset[str] = frozenset()) -> Sequence:
        """Commands up to one of the reserved words `ends`, a closing parenthesis or the end."""
        raise NotImplementedError

    def command(self) -> Node:
        """One command of a pipeline."""
        raise NotImplementedError

    def reserved(self) -> str | None:
        found = _RESERVED.match(self.text, self.position, self.end)
        return found[0] if found else None

    def expect(self, *words: str) -> str:
        self.skip_lines()
        reserved = self.reserved()
        if reserved is None or reserved not in words:
            raise Unclear(f"expected {' or '.join(words)}")
        self.position += len(reserved)
        return reserved

    def parentheses(self) -> bool:
        found = _PARENTHESES.match(self.text, self.position, self.end)
        if found:
            self.position = found.end()
        elif self.next() == "(":
            raise Unclear("unexpected '('")
        return bool(found)

    def compound(self, opener: str) -> Node:
        self.effort.enter()
        start = self.position
        self.position += len(opener)
        made = self._by_opener(opener, start)
        if isinstance(made, Compound):
            self.redirects(made.redirects)
        self.effort.depth -= 1
        return made

    def _by_opener(self, opener: str, start: int) -> Node:
        if opener == "(":
            return self._parenthesis()
        if opener == "{":
            return Compound(Kind.GROUP, [self._body(_BRACE)])
        if opener == "[[":
            return Compound(Kind.TEST, [], self._test())
        if opener == "if":
            return Compound(Kind.IF, self._if())
        if opener == "case":
            return self._case()
        if opener == "function":
            return self._named_function(start)
        if opener in ("while", "until"):
            return self._while()
        made = self._for()
        if opener == "select":  # The choice may be empty.
            made.words.append(Word([Text("", quoted=True)], start, start))
        return made

    def _body(self, ends: frozenset[str]) -> Sequence:
        """At least one command, and the reserved word after it."""
        body = self.sequence(Sequence([]), ends)
        if not body.items:
            raise Unclear("expected a command")
        self.expect(*ends)
        return body

    def _parenthesis(self) -> Compound:
        self.not_split("(", "(")
        if self.next() == "(":
            expression = self.expression_in_parentheses()
            if expression is not None:
                word = Word([Arithmetic(expression)], self.position, self.position)
                return Compound(Kind.ARITHMETIC, [], [word])
        body = self.substituted()
        if not body.items:
            raise Unclear("empty subshell")
        return Compound(Kind.SUBSHELL, [body])

    def _if(self) -> list[Sequence]:
        bodies = [self._body(_THEN)]
        while True:
            bodies.append(self.sequence(Sequence([]), _BRANCH))
            if not bodies[-1].items:
                raise Unclear("expected a command")
            reserved = self.expect(*_BRANCH)
            if reserved == "fi":
                return bodies
            bodies.append(self._body(_THEN if reserved == "elif" else _FI))
            if reserved == "else":
                return bodies

    def _while(self) -> Compound:
        return Compound(Kind.LOOP, [self._body(_DO), self._body(_DONE)])

    def _for(self) -> Compound:
        self.skip_blanks()
        made = Compound(Kind.LOOP, [])
        if self.looking_at("(("):
            self.position += 1
            expression = self.expression_in_parentheses()
            if expression is None:
                raise Unclear("invalid expression in for ((…))")
            made.words.append(Word([Arithmetic(expression)], self.position, self.position))
        else:
            made.variable = self.run(_NAME)
            if not made.variable:
                raise Unclear("expected a variable name after for")
            self.skip_lines()
            if self.reserved() == "in":
                self.position += 2
                made.words = self._words()
        self.skip_blanks()
        self.take(";")
        closer = _DONE if self.expect("do", "{") == "do" else _BRACE
        made.bodies.append(self._body(closer))
        return made

    def _words(self) -> list[Word]:
        words: list[Word] = []
        while True:
            self.skip_gap()
            word = self.word()
            if not word.parts:
                return words
            words.append(word)

    def _case(self) -> Compound:
        self.skip_blanks()
        made = Compound(Kind.CASE, [], [self.word()])
        self.expect("in")
        while True:
            self.skip_lines()
            if self.reserved() == "esac":
                self.position += 4
                return made
            self._patterns(made.words)
            made.bodies.append(self.sequence(Sequence([]), _ESAC))
            if not any(map(self.take, (";;&", ";;", ";&"))) and self.reserved() != "esac":
                raise Unclear("unterminated case")

    def _patterns(self, words: list[Word]) -> None:
        self.take("(")
        while True:
            self.skip_blanks()
            word = self.word()
            if not word.parts:
                raise Unclear("expected a pattern in case")
            words.append(word)
            self.skip_blanks()
            character = self.next()
            if character not in ("|", ")"):
                raise Unclear("unterminated pattern in case")
            self.position += 1
            if character == ")":
                return

    def _test(self) -> list[Word]:
        """The words of `[[ … ]]`, without operators such as && and parentheses."""
        words: list[Word] = []
        regex = False
        while True:
            self.skip_blanks()
            while self.take("\n"):
                self.skip_blanks()
            if _TEST_END.match(self.text, self.position, self.end):
                self.position += 2
                return words
            if regex:
                words.append(self._regex())
            elif not self.run(_TEST_OPERATOR):
                words.append(self.word())
                if not words[-1].parts:
                    raise Unclear("unterminated [[")
            regex = not regex and bool(words) and words[-1].bare() == "=~"

    def _regex(self) -> Word:
        """The pattern after `=~`, in which parentheses and bars are part of the word."""
        start, nesting = self.position, 0
        made = Word([], start, start)
        while self.position < self.end:
            self.tick()
            character = self.next()
            if text := self.run(_REGEX_RUN):
                made.parts.append(Text(text, quoted=True))
            elif character in "()":
                self.position += 1
                nesting += 1 if character == "(" else -1
                made.parts.append(Text(character, quoted=True))
            elif character in " \t\n":
                if nesting <= 0:
                    break
                self.position += 1
            else:
                self.special(character, made.parts)
        if not made.parts:
            raise Unclear("expected a pattern after =~")
        made.end = self.position
        return made

    def _named_function(self, start: int) -> Function:
        """`function name` with parentheses or without."""
        self.skip_blanks()
        name = self.run(_FUNCTION_NAME)
        self.parentheses()
        return self.function(name, start)

    def function(self, name: str | None, start: int) -> Function:
        if not name:
            raise Unclear("the name of a function is quoted or expanded")
        self.skip_lines()
        reserved = self.reserved()
        if self.next() != "(" and reserved not in _BODIES:
            raise Unclear("expected the body of a function")
        body = self.compound(reserved or "(")
        begin, end = self.pinned or (start, self.position)
        return Function(name, body, self.text[start : self.position], begin, end)

    def coproc(self) -> Node:
        """A coprocess runs in the background; its name does not matter."""
        self.position += len("coproc")
        self.skip_blanks()
        before = self.position
        if self.run(_NAME):
            self.skip_blanks()
            if self.next() != "(" and self.reserved() not in _BODIES:
                self.position = before
        return Sequence([(self.command(), How.BACKGROUND)])
