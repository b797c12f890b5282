"""Checks the lines of audit logs: whether any was removed, changed, moved or inserted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_server.audit import chain
from sandbox_server.audit.chain import START, Head
from sandbox_server.audit.files import KeptHead, head_path, read_head, rotated_files, writers_of


@dataclass(frozen=True)
class Problem:
    file: str
    line: int
    """Where it was found; 0 for the file as a whole."""
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}" if self.line else f"{self.file}: {self.what}"


@dataclass
class Report:
    files: list[str] = field(default_factory=list)
    lines: int = 0
    chains: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    """What is no sign of tampering, but limits what is known."""


@dataclass
class _Line:
    file: Path
    number: int
    text: bytes
    fields: dict[str, Any] | None
    ended: bool = True


def _files(writer: Path) -> list[Path]:
    """Oldest first. A server that was killed as it rotated has not begun the last one yet."""
    rotated = rotated_files(writer)
    return [*rotated, writer] if writer.exists() or not rotated else [*rotated]


def verify_log(path: Path) -> Report:
    """All that servers have written at a path: every process's chain, with rotated files. The head
    of each has to be there."""
    writers = writers_of(path)
    if not writers:
        nothing = Problem(str(path), 0, "there is no audit log")
        return Report(problems=[nothing])
    report = verify_files([each for writer in writers for each in _files(writer)])
    for writer in writers:
        if not head_path(writer).exists():
            missing = "its head is missing: lines removed at its end would not be found"
            report.problems.append(Problem(str(writer), 0, missing))
            report.notes = [each for each in report.notes if each.file != str(writer)]
    return report


def verify_files(paths: Sequence[Path]) -> Report:
    """These files alone, in any order. Raises OSError."""
    report = Report(files=[str(path) for path in paths])
    by_chain: dict[str, list[list[_Line]]] = {}
    heads = {path: read_head(path) for path in paths}
    for path in paths:
        lines = list(_lines(path))
        report.lines += len(lines)
        first = next((line.fields for line in lines if line.fields), None)
        kept = heads[path]
        if first is None and lines and kept is None:
            report.problems.append(Problem(str(path), 0, "none of its lines is of a chain"))
        elif first is not None or kept is not None:
            name = first["chain"] if first else kept.head.chain if kept else ""
            by_chain.setdefault(name, []).append(lines)
    for name, files in by_chain.items():
        files.sort(key=_first_seq)
        of_chain = [(p, h) for p, h in heads.items() if h is not None and h.head.chain == name]
        _Checking(name, report, of_chain).check([line for file in files for line in file])
    report.chains = len(by_chain)
    return report


def _first_seq(lines: Iterable[_Line]) -> int:
    return next((line.fields["seq"] for line in lines if line.fields), 1 << 62)


def _lines(path: Path) -> Iterator[_Line]:
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            bare = text.removesuffix(b"\n")
            yield _Line(path, number, bare, chain.parse(bare), ended=bare != text)


class _Checking:
    """One chain."""

    def __init__(self, name: str, report: Report, heads: Sequence[tuple[Path, KeptHead]]) -> None:
        self._name = name
        self._report = report
        self._heads = heads
        self._last: Head | None = None
        """What the next line has to follow."""
        self._at: dict[int, _Line] = {}

    def check(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            if line.fields is not None:
                self._at.setdefault(line.fields["seq"], line)
        for at, line in enumerate(lines):
            after = lines[at + 1] if at + 1 < len(lines) else None
            if line.fields is None:
                self._unreadable(line, after)
            else:
                self._link(line, line.fields)
        self._ends(lines)

    def _unreadable(self, line: _Line, after: _Line | None) -> None:
        if after is not None and chain.is_torn(line.text, after.fields):
            self._note(line, "unfinished, as the server was ended while it wrote; told in line"
                       f" {after.number}")  # fmt: skip
        elif after is None and not line.ended:
            self._note(line, "unfinished: the server was ended while it wrote, or writes just now")
        else:
            self._problem(line, "not a line of the log: changed or inserted")

    def _link(self, line: _Line, fields: dict[str, Any]) -> None:
        head = chain.head_of(fields)
        last, expected = self._last, 1 if self._last is None else self._last.seq + 1
        if head.chain != self._name:
            self._problem(line, f"of another log (chain {head.chain}): inserted")
            return
        if chain.digest_of(fields) != head.hash:
            self._problem(line, "changed: its hash is not that of its content")
        elif last is None:
            self._begins(line, fields)
        elif head.seq > expected:
            self._jumps(line, expected, head.seq)
        elif head.seq < expected:
            again = self._at.get(head.seq) is not line
            what = "there already: inserted again" if again else "out of order: moved"
            self._problem(line, f"line {head.seq} of the log is {what}")
            return
        elif fields["prev"] != last.hash:
            what = "does not follow the line before: that one, or this, was changed or inserted"
            self._problem(line, what)
        self._last = head

    def _begins(self, line: _Line, fields: dict[str, Any]) -> None:
        first = min((kept.first for _, kept in self._heads), default=None)
        if fields["seq"] > 1 and (first is None or fields["seq"] > first):
            missing = f"lines before {fields['seq']} of the log are missing"
            if first is None:
                self._note(line, f"{missing}: removed, or in files that were not given")
            else:
                self._problem(line, f"{missing}: the oldest that is kept is {first}")
        elif fields["seq"] == 1 and fields["prev"] != START:
            self._problem(line, "the first line follows another: changed")

    def _jumps(self, line: _Line, expected: int, found: int) -> None:
        absent = [
            seq for seq in range(expected, min(found, expected + 1000)) if seq not in self._at
        ]
        if not absent:
            self._problem(line, f"out of order: line {found} of the log, {expected} was expected")
            return
        missing = f"line {expected}" if found - expected == 1 else f"lines {expected}-{found - 1}"
        self._problem(line, f"{missing} of the log before this one: removed")

    def _ends(self, lines: Sequence[_Line]) -> None:
        last = 0 if self._last is None else self._last.seq
        for path, kept in self._heads:
            if kept.head.seq > last:
                missing = f"its last lines are missing: {last + 1}-{kept.head.seq} of the log"
                self._report.problems.append(Problem(str(path), len(lines) and lines[-1].number,
                                                     f"{missing}, by its head"))  # fmt: skip
            else:
                named = self._at.get(kept.head.seq)
                if named is not None and named.fields and named.fields["hash"] != kept.head.hash:
                    self._problem(named, "its hash is not the one that the head has: replaced")
        if not self._heads and lines:
            self._note(lines[-1], "no head was found: lines removed after this one are not noticed")

    def _problem(self, line: _Line, what: str) -> None:
        self._report.problems.append(Problem(str(line.file), line.number, what))

    def _note(self, line: _Line, what: str) -> None:
        self._report.notes.append(Problem(str(line.file), line.number, what))
