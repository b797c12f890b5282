"""Compound commands: loops, conditions, tests, groups, functions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sandbox_server.policy.bash.syntax import (
    Arithmetic,
    Compound,
    Function,
    How,
    Kind,
    Node,
    Sequence,
    Text,
    Word,
)

if TYPE_CHECKING:
    from sandbox_server.policy.bash.parser import Parser

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


class Compounds:
    """Parses what starts with a parenthesis or a reserved word; calls the parser for bodies."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self.src = parser.src
        self.words = parser.words
        self.redirections = parser.redirections

    def compound(self, opener: str) -> Node:
        self.src.effort.enter(self.src.position)
        start = self.src.position
        self.src.position += len(opener)
        made = self._by_opener(opener, start)
        if isinstance(made, Compound):
            self.redirections.redirects(made.redirects)
        self.src.effort.depth -= 1
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
        body = self._parser.sequence(Sequence([]), ends)
        if not body.items:
            raise self.src.unclear("expected a command")
        self._parser.expect(*ends)
        return body

    def _parenthesis(self) -> Compound:
        self.src.not_split("(", "(")
        if self.src.next() == "(":
            expression = self.words.expression_in_parentheses()
            if expression is not None:
                word = Word([Arithmetic(expression)], self.src.position, self.src.position)
                return Compound(Kind.ARITHMETIC, [], [word])
        body = self._parser.substituted()
        if not body.items:
            raise self.src.unclear("empty subshell")
        return Compound(Kind.SUBSHELL, [body])

    def _if(self) -> list[Sequence]:
        bodies = [self._body(_THEN)]
        while True:
            bodies.append(self._parser.sequence(Sequence([]), _BRANCH))
            if not bodies[-1].items:
                raise self.src.unclear("expected a command")
            reserved = self._parser.expect(*_BRANCH)
            if reserved == "fi":
                return bodies
            bodies.append(self._body(_THEN if reserved == "elif" else _FI))
            if reserved == "else":
                return bodies

    def _while(self) -> Compound:
        return Compound(Kind.LOOP, [self._body(_DO), self._body(_DONE)])

    def _for(self) -> Compound:
        self.src.skip_blanks()
        made = Compound(Kind.LOOP, [])
        if self.src.looking_at("(("):
            self.src.position += 1
            expression = self.words.expression_in_parentheses()
            if expression is None:
                raise self.src.unclear("invalid expression in for ((…))")
            made.words.append(Word([Arithmetic(expression)], self.src.position, self.src.position))
        else:
            made.variable = self.src.run(_NAME)
            if not made.variable:
                raise self.src.unclear("expected a variable name after for")
            self.redirections.skip_lines()
            if self._parser.reserved() == "in":
                self.src.position += 2
                made.words = self._words()
        self.src.skip_blanks()
        if self.src.next() == ";":
            self.src.position += 1
        closer = _DONE if self._parser.expect("do", "{") == "do" else _BRACE
        made.bodies.append(self._body(closer))
        return made

    def _words(self) -> list[Word]:
        words: list[Word] = []
        while True:
            self.redirections.skip_gap()
            word = self.words.word()
            if not word.parts:
                return words
            words.append(word)

    def _case(self) -> Compound:
        self.src.skip_blanks()
        made = Compound(Kind.CASE, [], [self.words.word()])
        self._parser.expect("in")
        while True:
            self.redirections.skip_lines()
            if self._parser.reserved() == "esac":
                self.src.position += 4
                return made
            self._patterns(made.words)
            made.bodies.append(self._parser.sequence(Sequence([]), _ESAC))
            for separator in (";;&", ";;", ";&"):
                if self.src.looking_at(separator):
                    self.src.position += len(separator)
                    break
            else:
                if self._parser.reserved() != "esac":
                    raise self.src.unclear("unterminated case")

    def _patterns(self, words: list[Word]) -> None:
        if self.src.next() == "(":
            self.src.position += 1
        while True:
            self.src.skip_blanks()
            word = self.words.word()
            if not word.parts:
                raise self.src.unclear("expected a pattern in case")
            words.append(word)
            self.src.skip_blanks()
            character = self.src.next()
            if character not in ("|", ")"):
                raise self.src.unclear("unterminated pattern in case")
            self.src.position += 1
            if character == ")":
                return

    def _test(self) -> list[Word]:
        """The words of `[[ … ]]`, without operators such as && and parentheses."""
        words: list[Word] = []
        regex = False
        while True:
            self.src.skip_blanks()
            while self.src.next() == "\n":
                self.src.position += 1
                self.src.skip_blanks()
            if _TEST_END.match(self.src.text, self.src.position, self.src.end):
                self.src.position += 2
                return words
            if regex:
                words.append(self._regex())
            elif not self.src.run(_TEST_OPERATOR):
                words.append(self.words.word())
                if not words[-1].parts:
                    raise self.src.unclear("unterminated [[")
            regex = not regex and bool(words) and words[-1].bare() == "=~"

    def _regex(self) -> Word:
        """The pattern after `=~`, in which parentheses and bars are part of the word."""
        start, nesting = self.src.position, 0
        made = Word([], start, start)
        while self.src.position < self.src.end:
            self.src.tick()
            character = self.src.next()
            if text := self.src.run(_REGEX_RUN):
                made.parts.append(Text(text, quoted=True))
            elif character in "()":
                self.src.position += 1
                nesting += 1 if character == "(" else -1
                made.parts.append(Text(character, quoted=True))
            elif character in " \t\n":
                if nesting <= 0:
                    break
                self.src.position += 1
            else:
                self.words.special(character, made.parts)
        if not made.parts:
            raise self.src.unclear("expected a pattern after =~")
        made.end = self.src.position
        return made

    def _named_function(self, start: int) -> Function:
        """`function name` with parentheses or without."""
        self.src.skip_blanks()
        name = self.src.run(_FUNCTION_NAME)
        self._parser.parentheses()
        return self.function(name, start)

    def function(self, name: str | None, start: int) -> Function:
        if not name:
            raise self.src.unclear("the name of a function is quoted or expanded")
        self.redirections.skip_lines()
        reserved = self._parser.reserved()
        if self.src.next() != "(" and reserved not in _BODIES:
            raise self.src.unclear("expected the body of a function")
        body = self.compound(reserved or "(")
        begin, end = self.src.pinned or (start, self.src.position)
        return Function(name, body, self.src.text[start : self.src.position], begin, end)

    def coproc(self) -> Node:
        """A coprocess runs in the background; its name does not matter."""
        self.src.position += len("coproc")
        self.src.skip_blanks()
        before = self.src.position
        if self.src.run(_NAME):
            self.src.skip_blanks()
            if self.src.next() != "(" and self._parser.reserved() not in _BODIES:
                self.src.position = before
        return Sequence([(self._parser.command(), How.BACKGROUND)])
