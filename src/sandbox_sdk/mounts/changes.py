"""What a sandbox has made of a folder, told from its base and from the folder as it is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

from sandbox_sdk.mounts.entries import Entry

What = Literal["added", "changed", "removed"]


@dataclass(frozen=True)
class MountChange:
    """A file, link or empty folder that the sandbox has added, changed or removed."""

    folder: Path
    """The folder of this machine that is mounted."""
    path: str
    """Below it."""
    change: What
    conflict: str | None = None
    """Why it is not applied; None if it is, or can be."""
    text: str = field(default="", repr=False)
    """A unified diff from what is here, or a line that says what there is instead of text."""


@dataclass(frozen=True)
class MountChanges:
    """All changes of a sandbox to its mounts, by folder and path. `str()` of it is a patch."""

    changes: list[MountChange]
    left_out: list[str]
    """What does not come back, and why."""

    @property
    def conflicts(self) -> list[MountChange]:
        return [each for each in self.changes if each.conflict is not None]

    def __str__(self) -> str:
        several = len({each.folder for each in self.changes}) > 1
        parts = []
        for folder, changes in groupby(self.changes, key=lambda each: each.folder):
            parts += [f"# in {folder}\n"] if several else []
            parts += [each.text for each in changes]
        return "".join(parts)


@dataclass(frozen=True)
class Step:
    """One path that is to become as it is in the sandbox. before: as it was copied."""

    path: str
    before: Entry | None
    after: Entry | None
    implied: bool = False
    """A folder that comes or goes with what is in it: done, and not told."""

    @property
    def what(self) -> What:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


def steps(base: Mapping[str, Entry], there: Mapping[str, Entry]) -> list[Step]:
    """In the order in which they can be carried out: what goes first, from the bottom up; then
    folders, files, and links last, so that no file is written through one of them."""
    held_before, held_after = _parents(base), _parents(there)
    found = []
    for path in base.keys() | there.keys():
        before, after = base.get(path), there.get(path)
        if before != after:
            came = after is not None and after.kind == "directory" and path in held_after
            went = before is not None and before.kind == "directory" and path in held_before
            found.append(Step(path, before, after, implied=came or (went and after is None)))
    order = {"directory": 1, "file": 2, "symlink": 3}
    gone = [step for step in found if step.after is None]
    made = [step for step in found if step.after is not None]
    gone.sort(key=lambda step: step.path.split("/"), reverse=True)
    made.sort(key=lambda s: (order[s.after.kind if s.after else "file"], s.path.split("/")))
    return [*gone, *made]


def _parents(paths: Mapping[str, Entry]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def conflict_of(step: Step, here: Entry | None) -> str | None:
    """Why a step would undo something that was done here since the copy; None if it would not."""
    if here in (step.before, step.after):
        return None
    if here is None:
        return "removed here since it was copied"
    if step.before is None:
        return "made here too since it was copied"
    return "changed here too since it was copied"


def is_of_git(path: str) -> bool:
    """Whether a path is in a `.git`, also as file systems without case or with short names see it.

    The configuration and the hooks of a repository are programs that git runs: a sandbox must not
    put any into a folder of its caller.
    """
    return any(_plain(step) in (".git", "git~1") for step in path.split("/"))


def _plain(name: str) -> str:
    """Without what some file systems ignore in names."""
    return "".join(c for c in name if c.isprintable()).casefold().rstrip(". ")


def without(
    entries: Mapping[str, Entry], leaves_out: Callable[[str], bool]
) -> Iterator[tuple[str, Entry]]:
    return ((path, entry) for path, entry in entries.items() if not leaves_out(path))
