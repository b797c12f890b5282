"""Redirections, heredocs, and the ends of lines where heredocs are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox_server.policy.bash.effort import CHARACTERS, Effort
from sandbox_server.policy.bash.expansions import ExpansionLexer
from sandbox_server.policy.bash.syntax import Redirect, Text, Word

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


class RedirectionParser(ExpansionLexer):
    """Knows which heredocs are still to be read."""

    def __init__(
        self, source: str, effort: Effort | None = None, *, pinned: tuple[int, int] | None = None
    ) -> None:
        super().__init__(source, effort, pinned=pinned)
        self._pending: list[_Heredoc] = []
        self._outer_pending = 0

    def _redirect(self, made: list[Redirect]) -> bool:
        found = _REDIRECT.match(self.source, self.position, self.end)
        if not found:
            return False
        operator = found[1] or found[2]
        self.position = found.end()
        self.not_split(operator, "<>&|(-" if operator in ("<", ">", "<<") else "<>&|(")
        self.skip_blanks()
        start = self.position
        target = self.word()
        if not target.parts:
            raise self.unclear(f"{operator} without a target")
        redirect = Redirect(operator, target)
        made.append(redirect)
        if operator in ("<<", "<<-"):
            delimiter, quoted = _delimiter(target, self.source[start : self.position])
            if delimiter is None:
                raise self.unclear("the delimiter of a heredoc is not plain")
            self._pending.append(_Heredoc(redirect, delimiter, quoted, operator == "<<-"))
        return True

    def _redirects(self, made: list[Redirect]) -> None:
        self.skip_blanks()
        while self._redirect(made):
            self.skip_blanks()

    def _skip_gap(self) -> None:
        """Blanks, and a comment."""
        self.skip_blanks()
        if self.next() == "#":
            self.run(_COMMENT)

    def _skip_lines(self) -> None:
        """Blanks, comments and ends of lines."""
        while self.position < self.end:
            self.skip_blanks()
            character = self.next()
            if character == "#":
                self.run(_COMMENT)
            elif character == "\n":
                self.position += 1
                if self._pending:
                    self._read_heredocs()
                elif self._outer_pending:
                    raise self.unclear("a heredoc that starts within another command")
            else:
                return

    def _read_heredocs(self) -> None:
        pending, self._pending = self._pending, []
        for heredoc in pending:
            start = self.position
            end = self._find_delimiter(heredoc)
            if heredoc.quoted:
                body = Word([Text(self.source[start:end], quoted=True)], start, end)
            else:
                body = self.heredoc_body(start, end)
            if heredoc.tabs:
                for part in body.parts:
                    if isinstance(part, Text):
                        part.text = re.sub(r"(?m)^\t+", "", part.text)
            heredoc.redirect.target = body

    def _find_delimiter(self, heredoc: _Heredoc) -> int:
        """Where the text ends; moves behind the delimiter. The end of the source ends it too."""
        if not heredoc.quoted and self.source.find("\\\n", self.position, self.end) >= 0:
            return self._find_among_continued(heredoc)
        for at in self._candidates(heredoc):
            stop = at + len(heredoc.delimiter)
            line = self.source.rfind("\n", 0, at) + 1
            if stop == self.end or self.source[stop] == "\n":
                if self.source[line:at].strip("\t"):
                    continue
                self.position = min(stop + 1, self.end)
                return line
        self.position = self.end
        return self._unclosed()

    def _candidates(self, heredoc: _Heredoc) -> Iterator[int]:
        """Where a delimiter may stand: at the start of a line, or behind tabs."""
        marks = [before + heredoc.delimiter for before in ("\n\t" if heredoc.tabs else "\n")]
        at = self.position - 1
        while True:
            self.effort.spend(1 + (self.end - at) // (16 * CHARACTERS), at)
            found = [self.source.find(mark, at, self.end) for mark in marks]
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
                self.effort.spend(1 + len(line) // CHARACTERS, start)
                line = line[:-1] + self._line()
            if (line.lstrip("\t") if heredoc.tabs else line) == heredoc.delimiter:
                return start
        return self._unclosed()

    def _unclosed(self) -> int:
        if self.effort.depth or self.pinned:
            raise self.unclear("a heredoc that is never closed")
        return self.end

    def _line(self) -> str:
        at = self.source.find("\n", self.position, self.end)
        end = self.end if at < 0 else at
        line = self.source[self.position : end]
        self.position = min(end + 1, self.end)
        return line


def _delimiter(word: Word, source: str) -> tuple[str | None, bool]:
    """The delimiter of a heredoc, and whether its text is to be taken as it is."""
    texts = [part.text for part in word.parts if isinstance(part, Text)]
    if len(texts) < len(word.parts) or "\n" in source:
        return None, False
    return "".join(texts), any(mark in source for mark in "\\'\"")


def _continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
