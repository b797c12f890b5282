"""Compares a folder as it came back with the folder here, and brings it here where asked to."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_sdk.inside import leads_inside, stays_inside, steps_of
from sandbox_sdk.mounts.bases import Base
from sandbox_sdk.mounts.changes import MountChange, Step, conflict_of, is_of_git, steps, without
from sandbox_sdk.mounts.entries import Entry, Here
from sandbox_sdk.mounts.returned import Returned
from sandbox_sdk.mounts.text import MAX_SHOWN, patch
from sandbox_sdk.mounts.writing import write

_GIT = (
    ".git: it stays in the sandbox with its {} changes, because git runs what configuration and"
    " hooks say; commits come back with git bundle"
)
MAX_PATCH = 64 << 20
"""Characters of all patches of a mount together."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    act: bool = False
    """Whether changes are brought here, or only told."""
    force: bool = False
    """Whether what was changed here since the copy is replaced."""


class Comparison:
    """Of one mount. `run` fills `changes`, `left_out`, and `base` with what is the same now."""

    def __init__(self, base: Base, there: Returned, here: Here, wanted: Wanted) -> None:
        self.base = base
        self.changes: list[MountChange] = []
        self.left_out = list(there.left_out)
        self._there = there
        self._here = here
        self._wanted = wanted
        self._room = MAX_PATCH
        self._folders_to_be: set[str] = set()
        """Where a folder replaces a file, which is still here if nothing is carried out."""

    def run(self) -> None:
        before = dict(without(self.base.entries, self._stays_out))
        after = dict(without(self._there.entries, self._stays_out))
        for step in steps(before, after):
            if self._is_link_out(step):
                self.left_out.append(f"{step.path}: a link that leads out of the folder")
            else:
                self._take(step)
        self.changes.sort(key=lambda each: each.path.split("/"))
        git = sum(is_of_git(step.path) for step in steps(self.base.entries, self._there.entries))
        if git:
            self.left_out.append(_GIT.format(git))

    def _stays_out(self, path: str) -> bool:
        return is_of_git(path) or self._there.is_unread(path)

    def _is_link_out(self, step: Step) -> bool:
        if step.after is None or step.after.kind != "symlink":
            return False
        place, target = steps_of(step.path), step.after.target
        return not (stays_inside(place, target) and leads_inside(self._here.folder, place, target))

    def _take(self, step: Step) -> None:
        try:
            entry = self._look(step)
            conflict = None if self._wanted.force else conflict_of(step, entry)
            if entry == step.after:
                self._settle(step, step.after if entry is None else entry)
                return
            text = "" if step.implied else self._text(step, entry)
            if conflict is None and self._wanted.act:
                self._settle(step, write(self._here, step, entry, self._there))
        except NotADirectoryError as exc:
            conflict, text = f"{exc.filename} is not a folder here", ""
        except OSError as exc:
            conflict, text = exc.strerror or str(exc), ""
            if step.implied and step.after is None:
                return  # A folder that has other files here: it stays.
        if conflict is not None or not step.implied:
            change = MountChange(self._here.folder, step.path, step.what, conflict, text)
            self.changes.append(change)
        if conflict is None and step.after is not None and step.after.kind == "directory":
            self._folders_to_be.add(step.path)

    def _look(self, step: Step) -> Entry | None:
        try:
            return self._here.look(steps_of(step.path))
        except NotADirectoryError as exc:
            if exc.filename in self._folders_to_be:
                return None
            raise

    def _settle(self, step: Step, entry: Entry | None) -> None:
        if entry is None:
            self.base.entries.pop(step.path, None)
        else:
            self.base.entries[step.path] = entry

    def _text(self, step: Step, entry: Entry | None) -> str:
        if self._room < 0:
            return f"# {step.path!a}: not shown, the patch is too long already\n"
        text = self._patch(step, entry)
        self._room -= len(text)
        return text

    def _patch(self, step: Step, entry: Entry | None) -> str:
        old = new = None
        if entry is not None:
            old = self._here.read(steps_of(step.path), MAX_SHOWN) if entry.kind == "file" else b""
            old = entry.target.encode(errors="surrogateescape") if entry.target else old
        if step.after is not None:
            after = step.after
            new = self._there.content(step.path, MAX_SHOWN + 1) if after.kind == "file" else b""
            new = after.target.encode(errors="surrogateescape") if after.target else new
        return patch(step.path, entry, step.after, old, new)
