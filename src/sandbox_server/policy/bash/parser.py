"""The whole of bash's grammar: compound commands on top of simple ones."""

from __future__ import annotations

import re

from sandbox_server.policy.bash.commands import CommandParser
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

_DO = frozenset({"do"})
_DONE = frozenset({"done"})
_THEN = frozenset({"then"})
_BRANCH = frozenset({"elif", "else", "fi"})
_FI = frozenset({"fi"})
_BRACE = frozenset({"}"})
_ESAC = frozenset({"esac"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=[ \t\n;]|\\\n|\Z)")
_FUNCTION_NAME = re.compile(r"[^ \t\n;&|<>()'\"$`\\]+")
_TEST_END = re.compile(r"\]\](?=[ \t\n;&|<>()]|\\\n|\Z)")
_TEST_OPERATOR = re.compile(r"&&|\|\||[()<>]")
_REGEX_RUN = re.compile(r"[^ \t\n\\'\"$`()]+")


class Parser(CommandParser):
    """A parser of one source. Commands before one that is Unclear are kept in `whole`."""

    def nested(self, source: str, start: int) -> Sequence:
        return Parser(source, self.effort, pinned=self.pinned or (start, start + 1)).parse()

    def _compound(self, opener: str) -> Node:
        self.effort.enter(self.position)
        start = self.position
        self.position += len(opener)
        made = self._by_opener(opener, start)
        if isinstance(made, Compound):
            self._redirects(made.redirects)
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
        if opener == "select":  # What is chosen may be nothing.
            made.words.append(Word([Text("", quoted=True)], start, start))
        return made

    def _body(self, ends: frozenset[str]) -> Sequence:
        """At least one command, and the reserved word behind."""
        body = self._sequence(Sequence([]), ends)
        if not body.items:
            raise self.unclear("a command is missing")
        self._expect(*ends)
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
            raise self.unclear("a subshell without a command")
        return Compound(Kind.SUBSHELL, [body])

    def _if(self) -> list[Sequence]:
        bodies = [self._body(_THEN)]
        while True:
            bodies.append(self._sequence(Sequence([]), _BRANCH))
            if not bodies[-1].items:
                raise self.unclear("a command is missing")
            reserved = self._expect(*_BRANCH)
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
                raise self.unclear("a loop whose expression is not understood")
            made.words.append(Word([Arithmetic(expression)], self.position, self.position))
        else:
            made.variable = self.run(_NAME)
            if not made.variable:
                raise self.unclear("a loop without a name")
            self._skip_lines()
            if self._reserved() == "in":
                self.position += 2
                made.words = self._words()
        self.skip_blanks()
        if self.next() == ";":
            self.position += 1
        closer = _DONE if self._expect("do", "{") == "do" else _BRACE
        made.bodies.append(self._body(closer))
        return made

    def _words(self) -> list[Word]:
        words: list[Word] = []
        while True:
            self._skip_gap()
            word = self.word()
            if not word.parts:
                return words
            words.append(word)

    def _case(self) -> Compound:
        self.skip_blanks()
        made = Compound(Kind.CASE, [], [self.word()])
        self._expect("in")
        while True:
            self._skip_lines()
            if self._reserved() == "esac":
                self.position += 4
                return made
            self._patterns(made.words)
            made.bodies.append(self._sequence(Sequence([]), _ESAC))
            for separator in (";;&", ";;", ";&"):
                if self.looking_at(separator):
                    self.position += len(separator)
                    break
            else:
                if self._reserved() != "esac":
                    raise self.unclear("a case that is never closed")

    def _patterns(self, words: list[Word]) -> None:
        if self.next() == "(":
            self.position += 1
        while True:
            self.skip_blanks()
            word = self.word()
            if not word.parts:
                raise self.unclear("a pattern is missing")
            words.append(word)
            self.skip_blanks()
            character = self.next()
            if character not in ("|", ")"):
                raise self.unclear("a pattern that is never closed")
            self.position += 1
            if character == ")":
                return

    def _test(self) -> list[Word]:
        """The words of `[[ … ]]`; operators that are no words are left out."""
        words: list[Word] = []
        regex = False
        while True:
            self.skip_blanks()
            while self.next() == "\n":
                self.position += 1
                self.skip_blanks()
            if _TEST_END.match(self.source, self.position, self.end):
                self.position += 2
                return words
            if regex:
                words.append(self._regex())
            elif not self.run(_TEST_OPERATOR):
                words.append(self.word())
                if not words[-1].parts:
                    raise self.unclear("a test that is never closed")
            regex = not regex and bool(words) and words[-1].bare() == "=~"

    def _regex(self) -> Word:
        """Behind `=~`, parentheses and bars are part of the word."""
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
                self._special(character, made.parts)
        if not made.parts:
            raise self.unclear("a test without a pattern")
        made.end = self.position
        return made

    def _named_function(self, start: int) -> Function:
        """`function name` with parentheses or without."""
        self.skip_blanks()
        name = self.run(_FUNCTION_NAME)
        self._parentheses()
        return self._function(name, start)

    def _function(self, name: str | None, start: int) -> Function:
        if not name:
            raise self.unclear("a function whose name is not plain")
        self._skip_lines()
        reserved = self._reserved()
        if self.next() != "(" and (reserved not in ("{", "[[", "if", "for", "select", "while",
                                                    "until", "case")):  # fmt: skip
            raise self.unclear("a function without a body")
        body = self._compound(reserved or "(")
        begin, end = self.pinned or (start, self.position)
        return Function(name, body, self.source[start : self.position], begin, end)

    def _coproc(self) -> Node:
        """It runs beside the shell, whatever its name."""
        self.position += len("coproc")
        self.skip_blanks()
        before = self.position
        if self.run(_NAME):
            self.skip_blanks()
            if not (self.next() == "(" or self._reserved() in ("{", "if", "while", "until", "for",
                                                               "case", "[[")):  # fmt: skip
                self.position = before
        return Sequence([(self._command(), How.BACKGROUND)])


def parse(source: str) -> Sequence:
    """The commands of a source. Raises Unclear."""
    return Parser(source).parse()


__all__ = ["Parser", "Unclear", "parse"]
