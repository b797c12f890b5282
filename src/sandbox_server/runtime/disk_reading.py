"""What is on a copy of a disk, and what differs between two of them."""

from __future__ import annotations

import contextlib
import filecmp
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.fsmount import mounted_nowhere

Change = Literal["made", "changed", "removed"]
MOST_ENTRIES = 200_000
"""More are not compared: a disk has 100,000 inodes by default."""


class Entry(NamedTuple):
    kind: int
    mode: int
    size: int
    modified_ns: int
    inode: int
    changed_ns: int
    """When anything of it changed, which nobody in a box can set."""
    target: str
    """Of a link."""


@dataclass(frozen=True, order=True)
class Difference:
    path: str
    """Relative; names that are not UTF-8 are with surrogates."""
    change: Change


@contextlib.contextmanager
def opened(image: Path) -> Iterator[Path]:
    """The files on a copy of a disk. Only root may. Blocks for milliseconds. Raises OSError."""
    with contextlib.ExitStack() as stack:
        with loop_disk.attached_to_read(image) as disk:
            folder = stack.enter_context(mounted_nowhere(disk.device, "ext4", ["ro"]))
        yield folder


def differences(before: Path, after: Path) -> list[Difference]:
    """Between the files in two folders, by path. Blocks. Raises OSError."""
    old, new = entries(before), entries(after)
    found = [Difference(path, "made") for path in new.keys() - old.keys()]
    found += [Difference(path, "removed") for path in old.keys() - new.keys()]
    for path in old.keys() & new.keys():
        if _differs(old[path], new[path], before / path, after / path):
            found.append(Difference(path, "changed"))
    return sorted(found)


def entries(folder: Path) -> Mapping[str, Entry]:
    """Everything in a folder, by path. Raises OSError if that is too much."""
    found: dict[str, Entry] = {}
    todo = [""]
    while todo:
        parent = todo.pop()
        with os.scandir(folder / parent) as there:
            for each in there:
                path = os.path.join(parent, each.name)
                found[path] = entry = _entry(each)
                if entry.kind == stat.S_IFDIR:
                    todo.append(path)
        if len(found) > MOST_ENTRIES:
            raise OSError(f"more than {MOST_ENTRIES} files")
    return found


def _entry(each: os.DirEntry[str]) -> Entry:
    info = each.stat(follow_symlinks=False)
    kind = stat.S_IFMT(info.st_mode)
    return Entry(
        kind=kind,
        mode=stat.S_IMODE(info.st_mode),
        size=info.st_size,
        modified_ns=info.st_mtime_ns,
        inode=info.st_ino,
        changed_ns=info.st_ctime_ns,
        target=os.readlink(each.path) if kind == stat.S_IFLNK else "",
    )


def _differs(old: Entry, new: Entry, before: Path, after: Path) -> bool:
    if (old.kind, old.mode, old.target) != (new.kind, new.mode, new.target):
        return True
    if old.kind != stat.S_IFREG or old == new:
        return False  # The time of a folder changes with what is in it, which is told itself.
    if (old.size, old.modified_ns) != (new.size, new.modified_ns):
        return True
    return not filecmp.cmp(before, after, shallow=False)
