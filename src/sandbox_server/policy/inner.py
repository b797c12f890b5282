"""What a command would run, the option parsing to find out, and what find finds and runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sandbox_server.policy.fields import HOLE, NAME, SPLIT, may_be_flag

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


@dataclass(frozen=True)
class Run:
    """Another command."""

    argv: list[str]
    assigned: list[str] = field(default_factory=list)
    """`NAME=value` in its environment."""
    elsewhere: bool = False
    """In a working directory that is not known."""


@dataclass(frozen=True)
class Script:
    """Bash source."""

    text: str
    here: bool = False
    """Runs in the current shell rather than in a new one."""
    late: bool = False
    """Runs at any later time (trap)."""
    words: bool = False
    """Comes from `env -S`, where `\\_` is a space."""
    file: str | None = None
    """The file its text is read from."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unread:
    """Code that is not analysed: in another language, or in an unknown argument."""

    why: str


Inner = Run | Script | Unread
MAX_FILLED = 256 << 10


def filled(words: list[str], mark: str, text: str) -> list[str]:
    """Replace every `mark` with `text`. If the result is too large, those words become SPLIT."""
    count = sum(word.count(mark) for word in words)
    small = count * len(text) <= MAX_FILLED
    return [
        word if mark not in word else word.replace(mark, text) if small else SPLIT for word in words
    ]


class Options:
    """The options in front of a command, and the rest."""

    def __init__(self, words: list[str], *, valued: str, long_valued: tuple[str, ...]) -> None:
        self.found: list[tuple[str, str]] = []
        self.rest: list[str] = []
        index = 0
        while index < len(words):
            word = words[index]
            if word == "--":
                index += 1
                break
            if word.startswith("--"):
                index += self._long(words, index, long_valued)
            elif word.startswith("-") and len(word) > 1:
                index += self._short(words, index, valued)
            else:
                break
        self.rest = words[index:]

    @property
    def unsure(self) -> bool:
        """Whether a value may be several words, which moves the start of the command."""
        return any(SPLIT in value for _, value in self.found)

    def value(self, *names: str) -> str | None:
        return next((value for name, value in self.found if name in names), None)

    def _long(self, words: list[str], index: int, valued: tuple[str, ...]) -> int:
        name, equals, value = words[index].partition("=")
        if equals:
            self.found.append((name, value))
            return 1
        full = next((v for v in valued if v.startswith(name)), None)
        if full is None:
            self.found.append((name, ""))
            return 1
        self.found.append((full, words[index + 1] if index + 1 < len(words) else SPLIT))
        return 2

    def _short(self, words: list[str], index: int, valued: str) -> int:
        letters = words[index][1:]
        if re.fullmatch(r"[0-9]+", letters):
            return 1
        for at, letter in enumerate(letters):
            if letter in valued:
                if value := letters[at + 1 :]:
                    self.found.append((f"-{letter}", value))
                    return 1
                following = words[index + 1] if index + 1 < len(words) else SPLIT
                self.found.append((f"-{letter}", following))
                return 2
            self.found.append((f"-{letter}", ""))
        self.found.append((words[index], ""))
        return 1


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
