"""Paths that a sandbox names, kept inside a folder of this machine.

Every path is walked from folder to folder by descriptors, and no link is followed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from sandbox_sdk.protocol.errors import InvalidPath

Steps = tuple[str, ...]
"""A path below the folder."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAME = 4096
_MAX_LINKS = 40
"""As many links as the kernel follows for one path."""


def steps_of(name: str) -> Steps:
    """Raises InvalidPath for a name that is no path below a folder."""
    try:
        known = b"\0" not in os.fsencode(name) and len(os.fsencode(name)) <= _MAX_NAME
    except UnicodeEncodeError:
        known = False
    steps = tuple(step for step in name.split("/") if step not in ("", "."))
    if not known or not name or name.startswith("/") or ".." in steps:
        raise InvalidPath(f"the folder was not copied: {name[:200]!r} in it leads out of it")
    return steps


def stays_inside(place: Steps, target: str) -> bool:
    """Whether a link stays below the folder whatever becomes of the links around it: it may go up
    first and then down, never up again, where another link may have led it elsewhere."""
    if not target or target.startswith("/") or "\0" in target or len(target) > _MAX_NAME:
        return False
    steps = [step for step in target.split("/") if step not in ("", ".")]
    up = next((count for count, step in enumerate(steps) if step != ".."), len(steps))
    return up < len(place) and ".." not in steps[up:]


def leads_inside(folder: Path, steps: Steps, target: str | None = None) -> bool:
    """Follows a link as the kernel would, as long as that stays below the folder. target: of a link
    that is not made yet."""
    reached = [] if target is None else list(steps[:-1])
    todo, links = list(reversed(steps if target is None else target.split("/"))), 0
    while todo:
        step = todo.pop()
        if step in ("", "."):
            continue
        if step == "..":
            if not reached:
                return False
            reached.pop()
            continue
        reached.append(step)
        try:
            found = os.readlink(folder.joinpath(*reached))
        except OSError:
            continue  # No link, or nothing at all.
        links += 1
        if found.startswith("/") or links > _MAX_LINKS:
            return False
        reached.pop()
        todo.extend(reversed(found.split("/")))
    return True


@contextlib.contextmanager
def replacing(above: int, name: str) -> Iterator[str]:
    """A temporary name beside `name` in an open folder, which is replaced at the end in one
    step."""
    part = f".{secrets.token_hex(8)}.part"
    try:
        yield part
        os.replace(part, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=above)
        raise
