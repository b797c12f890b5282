"""Redirections and heredocs; the bodies of heredocs are read at the end of the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.bash.source import CHARACTERS, Source
from sandbox_server.policy.bash.syntax import Redirect, Text, Word
from sandbox_server.policy.bash.words import Words

_COMMENT = re.compile(r"#[^\n]*")
_REDIRECT = re.compile(
    r"(?:[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\})?(<<<|<<-?|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|(&>>?)"
)


@dataclass(slots=True)
class _Heredoc:
    redirect: Redirect
    delimiter: str
    quoted: bool
    tabs: bool


class Redirections:
    """Parses redirections, and keeps the heredocs whose bodies are still to be read."""

    def __init__(self, src: Source, words: Words) -> None:
        self.src = src
        self.words = words
        self.pending: list[_Heredoc] = []
        self.outer_pending = 0
        """Number of pending heredocs of the enclosing commands."""

    def redirect(self, made: list[Redirect]) -> bool:
        found = _REDIRECT.match(self.src.text, self.src.position, self.src.end)
        if not found:
            return False
        operator = found[1] or found[2]
        self.src.position = found.end()
        self.src.not_split(operator, "<>&|(-" if operator in ("<", ">", "<<") else "<>&|(")
        self.src.skip_blanks()
        start = self.src.position
        target = self.words.word()
        if not target.parts:
            raise self.src.unclear(f"expected a target after {operator}")
        redirect = Redirect(operator, target)
        made.append(redirect)
        if operator in ("<<", "<<-"):
            delimiter, quoted = _delimiter(target, self.src.text[start : self.src.position])
            if delimiter is None:
                raise self.src.unclear("the delimiter of a heredoc is not plain text")
            self.pending.append(_Heredoc(redirect, delimiter, quoted, operator == "<<-"))
        return True

    def redirects(self, made: list[Redirect]) -> None:
        self.src.skip_blanks()
        while self.redirect(made):
            self.src.skip_blanks()

    def skip_gap(self) -> None:
        """Skip blanks and a comment."""
        self.src.skip_blanks()
        if self.src.next() == "#":
            self.src.run(_COMMENT)

    def skip_lines(self) -> None:
        """Skip blanks, comments and newlines."""
        while self.src.position < self.src.end:
            self.src.skip_blanks()
            character = self.src.next()
            if character == "#":
                self.src.run(_COMMENT)
            elif character == "\n":
                self.src.position += 1
                if self.pending:
                    self.read_heredocs()
                elif self.outer_pending:
                    raise self.src.unclear("the body of a heredoc starts inside a nested command")
            else:
                return

    def read_heredocs(self) -> None:
        pending, self.pending = self.pending, []
        for heredoc in pending:
            start = self.src.position
            end = self._find_delimiter(heredoc)
            if heredoc.quoted:
                body = Word([Text(self.src.text[start:end], quoted=True)], start, end)
            else:
                body = self.words.heredoc_body(start, end)
            if heredoc.tabs:
                for part in body.parts:
                    if isinstance(part, Text):
                        part.text = re.sub(r"(?m)^\t+", "", part.text)
            heredoc.redirect.target = body

    def _find_delimiter(self, heredoc: _Heredoc) -> int:
        """The end of the body; moves past the delimiter. The end of the source ends it too."""
        if not heredoc.quoted and self.src.text.find("\\\n", self.src.position, self.src.end) >= 0:
            return self._find_among_continued(heredoc)
        for at in self._candidates(heredoc):
            stop = at + len(heredoc.delimiter)
            line = self.src.text.rfind("\n", 0, at) + 1
            if stop == self.src.end or self.src.text[stop] == "\n":
                if self.src.text[line:at].strip("\t"):
                    continue
                self.src.position = min(stop + 1, self.src.end)
                return line
        self.src.position = self.src.end
        return self._unclosed()

    def _candidates(self, heredoc: _Heredoc) -> Iterator[int]:
        """Possible positions of the delimiter: at the start of a line, or after tabs."""
        marks = [before + heredoc.delimiter for before in ("\n\t" if heredoc.tabs else "\n")]
        at = self.src.position - 1
        while True:
            self.src.effort.spend(1 + (self.src.end - at) // (16 * CHARACTERS), at)
            found = [self.src.text.find(mark, at, self.src.end) for mark in marks]
            at = min((place for place in found if place >= 0), default=-1) + 1
            if not at:
                return
            yield at

    def _find_among_continued(self, heredoc: _Heredoc) -> int:
        while self.src.position < self.src.end:
            self.src.tick()
            start = self.src.position
            line = self._line()
            while _continued(line) and self.src.position < self.src.end:
                self.src.effort.spend(1 + len(line) // CHARACTERS, start)
                line = line[:-1] + self._line()
            if (line.lstrip("\t") if heredoc.tabs else line) == heredoc.delimiter:
                return start
        return self._unclosed()

    def _unclosed(self) -> int:
        if self.src.effort.depth or self.src.pinned:
            raise self.src.unclear("unterminated heredoc")
        return self.src.end

    def _line(self) -> str:
        at = self.src.text.find("\n", self.src.position, self.src.end)
        end = self.src.end if at < 0 else at
        line = self.src.text[self.src.position : end]
        self.src.position = min(end + 1, self.src.end)
        return line


def _delimiter(word: Word, source: str) -> tuple[str | None, bool]:
    """The delimiter of a heredoc, and whether it is quoted (no expansion in the body)."""
    texts = [part.text for part in word.parts if isinstance(part, Text)]
    if len(texts) < len(word.parts) or "\n" in source:
        return None, False
    return "".join(texts), any(mark in source for mark in "\\'\"")


def _continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
