"""What a command did to the files in /workspace: the difference between two copies of a disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from sandbox_sdk.mounts.entries import Entry as Shown
from sandbox_sdk.mounts.entries import kind_of
from sandbox_sdk.mounts.text import MAX_SHOWN, patch
from sandbox_sdk.protocol.models import ChangedPaths, CommandChanges, PathChanged
from sandbox_server.runtime.disk_reading import Difference, differences, opened

LISTED = 50
"""Paths that a history lists of one command."""
CHANGES = 1000
"""Paths that are told of one command alone."""
DIFF_BYTES = 1 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def changed_paths(before: Path, after: Path) -> ChangedPaths:
    """Between two copies of a disk. Blocks. Raises OSError."""
    with opened(before) as old, opened(after) as new:
        found = differences(old, new)
    listed: dict[str, list[str]] = {"made": [], "changed": [], "removed": []}
    for each in found[:LISTED]:
        listed[each.change].append(_told(each.path))
    return ChangedPaths(**listed, more=max(len(found) - LISTED, 0))


def command_changes(before: Path, after: Path, *, number: int, command: str) -> CommandChanges:
    """The same with a patch. Blocks. Raises OSError."""
    with opened(before) as old, opened(after) as new:
        found = differences(old, new)
        diff, whole = _diff(found[:CHANGES], old, new)
    return CommandChanges(
        number=number,
        command=command,
        changes=[
            PathChanged(path=_told(each.path), change=each.change) for each in found[:CHANGES]
        ],
        more=max(len(found) - CHANGES, 0),
        diff=diff,
        diff_truncated=not whole or len(found) > CHANGES,
    )


def _diff(found: Iterable[Difference], old: Path, new: Path) -> tuple[str, bool]:
    """A patch, and whether it has everything."""
    pieces: list[str] = []
    left = DIFF_BYTES
    for each in found:
        sides = [_side(folder / each.path) for folder in (old, new)]
        if all(shown is None or shown.kind == "directory" for shown, _ in sides):
            continue  # Git knows no folders.
        (before, was), (after, now) = sides
        piece = patch(_told(each.path), before, after, was, now)
        left -= len(piece.encode())
        if left < 0:
            return "".join(pieces), False
        pieces.append(piece)
    return "".join(pieces), True


def _side(path: Path) -> tuple[Shown | None, bytes | None]:
    """What is at a path, and what is in it: of a file its content, of a link its target."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None, None
    kind = kind_of(status)
    if kind == "symlink":
        target = os.readlink(path)
        return Shown(kind, target=target), os.fsencode(target)
    if kind != "file":
        return Shown(kind), None
    shown = Shown(kind, executable=bool(stat.S_IMODE(status.st_mode) & 0o100))
    file = os.open(path, _OPEN)
    with open(file, "rb") as content:
        return shown, content.read(MAX_SHOWN + 1)


def _told(path: str) -> str:
    """As other answers tell a path: one that is not UTF-8 with replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")
