"""Tells whether files have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

SETTLED_S = 0.1
"""A file that was changed so shortly ago is read once more: a second change may have the same time
stamp."""

Stamps = tuple[tuple[str, int, int, int], ...]


def stamps(paths: Iterable[Path]) -> Stamps:
    """What changes when one of the files does."""
    found = [(str(path), *_stamp(path)) for path in paths]
    newest = max((stamp for _, stamp, _, _ in found), default=0)
    if time.time() - newest / 1e9 < SETTLED_S:
        found.append(("unsettled", time.monotonic_ns(), 0, 0))
    return tuple(found)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        about = os.stat(path)
    except OSError:
        return 0, 0, 0
    return about.st_ctime_ns, about.st_size, about.st_ino
