"""find: its starting points, the commands it runs, and its output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sandbox_server.policy.fields import HOLE, NAME, SPLIT, may_be_flag
from sandbox_server.policy.inner import Inner, Run, Unread, filled

_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_IN_FOLDER = ("-execdir", "-okdir")
_WRITES = ("-fprint", "-fprint0", "-fls", "-fprintf")
_PRINTS_OTHERS = frozenset({*_RUNS, *_WRITES, "-printf", "-ls"})
_NO_FILTER = frozenset({
    "-depth", "-d", "-xdev", "-mount", "-noleaf", "-follow", "-print", "-print0", "-ls", "-delete",
    "-true", "-a", "-and", "-o", "-or", "-H", "-L", "-P", "-daystart", "-nowarn", "-warn",
    "-maxdepth", "-mindepth", "-printf", "-fprint", "-type", "-D",
})  # fmt: skip
_VALUED = re.compile(
    "-(?:i?(?:name|path|wholename|regex|lname)|regextype|[acm](?:time|min)|[ac]?newer|newer[aBcm][aBcmt]"
    "|size|x?type|perm|user|group|uid|gid|maxdepth|mindepth|links|inum|samefile|fstype|used|context"
    "|printf|fprint0?|fls|files0-from|D)"
)


@dataclass
class Search:
    """The arguments of find, sorted by role."""

    starts: list[str] = field(default_factory=list)
    runs: list[list[str]] = field(default_factory=list)
    """Each with its flag first."""
    writes: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    sure: bool = True
    """False if an argument may turn out to be a flag."""

    @classmethod
    def of(cls, words: list[str]) -> Search:
        search, index = cls(), 0
        while index < len(words):
            index += search._take(words, index)
        if "-files0-from" in search.flags:
            search.starts = [HOLE]
        search.starts = search.starts or ["."]
        return search

    def _take(self, words: list[str], index: int) -> int:
        """Take the expression at `index`; returns how many words it has."""
        word = words[index]
        if word in _RUNS:
            end = _end_of_run(words, index)
            self.flags.append(word)
            if index + 1 < end:
                self.runs.append(words[index:end])
            return end + 1 - index
        if word == "-delete":
            self.runs.append([word, "rm", "-r", "{}"])
        if word[:1] in ("-", "!", "(", ")", ","):
            self.flags.append(word)
            if word in _WRITES:
                self.writes += words[index + 1 : index + 2]
            if not _VALUED.fullmatch(word) and word != "-fprintf":
                return 1
            values = words[index + 1 : index + (3 if word == "-fprintf" else 2)]
            if values == ["*"]:
                self.flags[-1] = "-true"
            self.sure &= not any(SPLIT in value for value in values)
            return 1 + len(values)
        following = "".join(words[index + 1 : index + 2])[:1]
        first = not (self.flags or self.starts)
        alone = first and SPLIT not in word and following in ("", "-", "(", "!")
        if word in (";", "+", "{}") or (may_be_flag(word) and not alone):
            self.sure = False  # It may hide an -exec, or end one.
        if not self.flags or self.flags[-1] in ("-H", "-L", "-P"):
            self.starts.append(word)
        return 1

    @property
    def everything(self) -> bool:
        """Whether nothing is filtered out, so that the starting points are found too."""
        return all(flag in _NO_FILTER for flag in self.flags if flag not in _RUNS)

    @property
    def found(self) -> list[str]:
        return [f"{start}/{NAME}" if _is_dots(start) else f"{start}{NAME}" for start in self.starts]


def unwrap_find(argv: list[str], _: str | None = None) -> Iterator[Inner]:
    """The commands of -exec and the like; -delete is judged as `rm -r`, -fprint as `tee`."""
    search = Search.of(argv[1:])
    if not search.sure:
        yield Unread("an argument of find that is only known at run time may be -exec or -delete")
    for kind, *command in search.runs:
        for place in [*(search.starts if search.everything else []), *search.found]:
            named = filled(command, "{}", place)
            yield Run(named, elsewhere=kind in _IN_FOLDER and _names_others(command))
    yield from (Run(["tee", file]) for file in search.writes)


def names_found(argv: list[str]) -> str | None:
    """What find prints, or None if that is not just names."""
    search = Search.of(argv[1:])
    if not search.sure or any(flag in _PRINTS_OTHERS for flag in search.flags):
        return None
    return "".join(f"{place}\n" for place in [*search.starts, *search.found])


def _end_of_run(words: list[str], start: int) -> int:
    for index in range(start + 1, len(words)):
        if words[index] == ";" or (words[index] == "+" and words[index - 1] == "{}"):
            return index
    return len(words)


def _names_others(command: list[str]) -> bool:
    """Whether it has relative paths besides what is found, or words that may be some."""
    return any("{}" not in word and word[:1] not in ("-", "/") for word in command[1:])


def _is_dots(start: str) -> bool:
    return start.rpartition("/")[2] in (".", "..")
