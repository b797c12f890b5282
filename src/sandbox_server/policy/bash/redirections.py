"""Redirections and heredocs; the bodies of heredocs are read at the end of the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.bash.source import CHARACTERS
from sandbox_server.policy.bash.syntax import Redirect, Text, Unclear, Word
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


class Redirections(Words):
    """Parses redirections, and keeps the heredocs whose bodies are still to be read."""

    pending: list[_Heredoc]
    outer_pending = 0
    """Number of pending heredocs of the enclosing commands."""

    def redirect(self, made: list[Redirect]) -> bool:
        found = _REDIRECT.match(self.text, self.position, self.end)
        if not found:
            return False
        operator = found[1] or found[2]
        self.position = found.end()
        self.not_split(operator, "<>&|(-" if operator in ("<", ">", "<<") else "<>&|(")
        self.skip_blanks()
        start = self.position
        target = self.word()
        if not target.parts:
            raise Unclear(f"expected a target after {operator}")
        redirect = Redirect(operator, target)
        made.append(redirect)
        if operator in ("<<", "<<-"):
            delimiter, quoted = _delimiter(target, self.text[start : self.position])
            if delimiter is None:
                raise Unclear("the delimiter of a heredoc is not plain text")
            self.pending.append(_Heredoc(redirect, delimiter, quoted, operator == "<<-"))
        return True

    def redirects(self, made: list[Redirect]) -> None:
        self.skip_blanks()
        while self.redirect(made):
            self.skip_blanks()

    def skip_gap(self) -> None:
        """Skip blanks and a comment."""
        self.skip_blanks()
        if self.next() == "#":
            self.run(_COMMENT)

    def skip_lines(self) -> None:
        """Skip blanks, comments and newlines."""
        while self.position < self.end:
            self.skip_blanks()
            character = self.next()
            if character == "#":
                self.run(_COMMENT)
            elif character == "\n":
                self.position += 1
                if self.pending:
                    self.read_heredocs()
                elif self.outer_pending:
                    raise Unclear("the body of a heredoc starts inside a nested command")
            else:
                return

    def read_heredocs(self) -> None:
        pending, self.pending = self.pending, []
        for heredoc in pending:
            start = self.position
            end = self._find_delimiter(heredoc)
            if heredoc.quoted:
                body = Word([Text(self.text[start:end], quoted=True)], start, end)
            else:
                body = self.heredoc_body(start, end)
            if heredoc.tabs:
                for part in body.parts:
                    if isinstance(part, Text):
                        part.text = re.sub(r"(?m)^\t+", "", part.text)
            heredoc.redirect.target = body

    def _find_delimiter(self, heredoc: _Heredoc) -> int:
        """The end of the body; moves past the delimiter. The end of the source ends it too."""
        if not heredoc.quoted and self.text.find("\\\n", self.position, self.end) >= 0:
            return self._find_among_continued(heredoc)
        for at in self._candidates(heredoc):
            stop = at + len(heredoc.delimiter)
            line = self.text.rfind("\n", 0, at) + 1
            if stop == self.end or self.text[stop] == "\n":
                if self.text[line:at].strip("\t"):
                    continue
                self.position = min(stop + 1, self.end)
                return line
        self.position = self.end
        return self._unclosed()

    def _candidates(self, heredoc: _Heredoc) -> Iterator[int]:
        """Possible positions of the delimiter: at the start of a line, or after tabs."""
        marks = [before + heredoc.delimiter for before in ("\n\t" if heredoc.tabs else "\n")]
        at = self.position - 1
        while True:
            self.effort.spend(1 + (self.end - at) // (16 * CHARACTERS))
            found = [self.text.find(mark, at, self.end) for mark in marks]
            at = min((place for place in found if place >= 0), default=-1) + 1
            if not at:
                return
            yield at

    def _find_among_continued(self, heredoc: _Heredoc) -> int:
        while self.position < self.end:
            self.tick()
            start = self.position
            line = self._line()
            while _continued(line) and self.position < self.end:
                self.effort.spend(1 + len(line) // CHARACTERS)
                line = line[:-1] + self._line()
            if (line.lstrip("\t") if heredoc.tabs else line) == heredoc.delimiter:
                return start
        return self._unclosed()

    def _unclosed(self) -> int:
        if self.effort.depth or self.pinned:
            raise Unclear("unterminated heredoc")
        return self.end

    def _line(self) -> str:
        at = self.text.find("\n", self.position, self.end)
        end = self.end if at < 0 else at
        line = self.text[self.position : end]
        self.position = min(end + 1, self.end)
        return line


def _delimiter(word: Word, source: str) -> tuple[str | None, bool]:
    """The delimiter of a heredoc, and whether it is quoted (no expansion in the body)."""
    texts = [part.text for part in word.parts if isinstance(part, Text)]
    if len(texts) < len(word.parts) or "\n" in source:
        return None, False
    return "".join(texts), any(mark in source for mark in "\\'\"")


def _continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
