"""Files that a command made or changed, or marked with save_artifact."""

import os
import stat
from typing import Any, Dict, Iterator, List, Optional, Set

from . import files
from .errors import Refused
from .file_channels import Listing
from .state import WORKSPACE
from .walk import MAX_DEPTH, Item, Walk

LOOKED_AT = 20_000
"""Most entries that are looked at below /workspace."""
DEPTH = 16
LEFT_OUT = ("node_modules", "__pycache__")
"""Folders that are not looked into, besides hidden ones and virtual environments."""


class Changes(Listing):
    """Lists files: those marked, then those changed since a time, unless that is None."""

    def __init__(self, marks: List[str], since: Optional[float], *, limit: int) -> None:
        super().__init__(WORKSPACE, depth=MAX_DEPTH, limit=limit)
        self._marks = marks
        self._since = since
        self._left = LOOKED_AT
        self._entries = self._found()

    def _found(self) -> Iterator[Optional[Dict[str, Any]]]:
        seen: Set[str] = set()
        for entry in self._all():
            if entry is not None:
                if entry["path"] in seen:
                    continue
                seen.add(entry["path"])
                if len(seen) > self._room:
                    self._truncated = True
                    return
            yield entry

    def _all(self) -> Iterator[Optional[Dict[str, Any]]]:
        for path in self._marks:
            try:
                fd, status, real = files.open_path(path)
            except (Refused, OSError):
                continue  # Deleted after it was marked, or not in a place that is served.
            os.close(fd)
            if stat.S_ISREG(status.st_mode):
                yield files.entry(real, status)
        if self._since is not None:
            yield from self._changed(self._since)

    def _changed(self, since: float) -> Iterator[Optional[Dict[str, Any]]]:
        walk = Walk(
            self._fd,
            recursive=True,
            left_out=self._left_out,
            room=lambda: self._left,
            enter=_is_looked_into,
            depth=DEPTH,
        )
        for item in walk:
            if item is None:
                yield None
                continue
            self._left -= 1
            if self._left < 0:
                self._truncated = True
                return
            status = item.status
            newest = max(status.st_mtime, status.st_ctime)
            if stat.S_ISREG(status.st_mode) and newest >= since and item.name[0] != ".":
                yield files.entry(os.path.join(WORKSPACE, item.path), status)


def _is_looked_into(item: Item) -> bool:
    if item.name[0] == "." or item.name in LEFT_OUT:
        return False
    try:  # What marks a virtual environment of any name.
        os.lstat(item.name + "/pyvenv.cfg", dir_fd=item.folder)
    except OSError:
        return True
    return False
