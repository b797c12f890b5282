"""Makes one path of this machine as it is in a sandbox: whole or not at all."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from sandbox_sdk.inside import NEW_FILE, replacing, steps_of
from sandbox_sdk.mounts.changes import Step
from sandbox_sdk.mounts.entries import Entry, Here, entry_of, look
from sandbox_sdk.mounts.returned import Returned


def write(here: Here, step: Step, seen: Entry | None, there: Returned) -> Entry | None:
    """Carry out a step, and return what is there now.

    seen: what was here when it was decided on. Raises OSError if something else is by now, or a
    folder in its place is not empty.
    """
    steps = steps_of(step.path)
    with here.above(steps, make=step.after is not None) as above:
        name = steps[-1]
        if look(above, name) != seen:
            raise OSError(errno.EBUSY, "changed here while it was applied")
        if step.after is None:
            _remove(above, name, seen)
            return None
        if step.after.kind == "directory":
            _remove(above, name, seen)
            os.mkdir(name, dir_fd=above)
            return step.after
        if seen is not None and seen.kind == "directory":
            _remove(above, name, seen)
        with replacing(above, name) as part:
            if step.after.kind == "symlink":
                os.symlink(step.after.target, part, dir_fd=above)
            else:
                _write_file(above, part, step, seen, there)
        made = entry_of(above, name, os.lstat(name, dir_fd=above), read=False)
        return replace(made, sha256=step.after.sha256)


def _remove(above: int, name: str, seen: Entry | None) -> None:
    if seen is None:
        return
    try:
        os.rmdir(name, dir_fd=above) if seen.kind == "directory" else os.unlink(name, dir_fd=above)
    except OSError as exc:
        if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise OSError(exc.errno, "a folder with other files here") from None
        raise


def _write_file(above: int, part: str, step: Step, seen: Entry | None, there: Returned) -> None:
    """Modes are those of this machine: what the sandbox says is only whether it is executable."""
    assert step.after is not None
    executable = step.after.executable
    fd = os.open(part, NEW_FILE, 0o777 if executable else 0o666, dir_fd=above)
    try:
        there.copy(step.path, fd)
        if seen is not None and seen.kind == "file":
            readable = seen.mode & 0o666
            os.fchmod(fd, readable | (readable & 0o444) >> 2 if executable else readable)
    finally:
        os.close(fd)
