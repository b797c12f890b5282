"""Unpacks an archive from a sandbox, which may be malicious.

Every path is walked from folder to folder by descriptors, and no link is followed, wherever it came
from: a link in the way is replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_sdk.inside import (
    FOLDER,
    NEW_FILE,
    Steps,
    leads_inside,
    replacing,
    stays_inside,
    steps_of,
)
from sandbox_sdk.protocol.errors import InvalidPath


def unpack(archive: Path, folder: Path) -> list[str]:
    """Put what is in the archive into folder, which is made, or filled where there is one.

    Only files, folders, and links that stay inside are unpacked; returns the names of the rest.
    Raises InvalidPath, before anything is copied, where the archive is broken or a path leads out;
    also where it has a file in place of a folder here, or the other way round.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            plan = _plan(tar)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _opened(folder) as top:
                _fill(top, tar, plan)
                return plan.left_out + _remove_links_out(folder, top, plan)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidPath(f"the folder was not copied: {exc}") from exc


@dataclass
class _Plan:
    folders: set[Steps] = field(default_factory=set)
    files: dict[Steps, tarfile.TarInfo] = field(default_factory=dict)
    links: dict[Steps, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def _plan(tar: tarfile.TarFile) -> _Plan:
    """Reads the archive to its end, so that one that is cut short is found before the first file
    is made. Raises InvalidPath."""
    plan = _Plan()
    for member in tar:
        if member.size < 0:
            raise InvalidPath(
                f"the folder was not copied: {member.name[:200]!r} has a size of {member.size};"
                " copy it again"
            )
        steps = steps_of(member.name)
        if member.isdir():
            plan.folders.add(steps)
        elif member.isreg() and not member.issparse():
            plan.files[steps] = member
        elif member.issym() and stays_inside(steps, member.linkname):
            plan.links[steps] = member.linkname
        else:
            plan.left_out.append(member.name)
    plan.folders |= {
        steps[:end] for steps in (*plan.files, *plan.links) for end in range(len(steps))
    }
    for steps in (*plan.files, *plan.links):
        if steps in plan.folders or (steps in plan.files and steps in plan.links):
            raise InvalidPath(f"the folder was not copied: {'/'.join(steps)!r} is there twice")
    return plan


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The descriptor of the folder to fill. The path to it is the user's, links and all."""
    above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        top = _enter(above, folder.name)
    finally:
        os.close(above)
    try:
        yield top
    finally:
        os.close(top)


def _enter(above: int, name: str) -> int:
    """A folder below another, made where it is missing."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(name, dir_fd=above).st_mode):
            os.unlink(name, dir_fd=above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    try:
        return os.open(name, FOLDER, dir_fd=above)
    except NotADirectoryError:
        raise _in_the_way(name, "a file here and a folder in the sandbox") from None


def _in_the_way(name: str, how: str) -> InvalidPath:
    return InvalidPath(f"{name!r} is {how}: move it away, or copy to another place")


@contextlib.contextmanager
def _descended(top: int, steps: Steps) -> Iterator[int]:
    fd = os.dup(top)
    try:
        for step in steps:
            above, fd = fd, _enter(fd, step)
            os.close(above)
        yield fd
    finally:
        os.close(fd)


def _fill(top: int, tar: tarfile.TarFile, plan: _Plan) -> None:
    """Links come last, so that no file is written through one of them."""
    below: dict[Steps, list[Steps]] = {steps: [] for steps in sorted(plan.folders)}
    for steps in plan.files:
        below[steps[:-1]].append(steps)
    for folder, files in below.items():
        with _descended(top, folder) as above:
            for steps in files:
                _write(above, steps[-1], tar, plan.files[steps])
    for steps, target in plan.links.items():
        with _descended(top, steps[:-1]) as above, _replacing(above, steps[-1]) as part:
            os.symlink(target, part, dir_fd=above)


def _write(above: int, name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    source = tar.extractfile(member)
    assert source is not None
    with _replacing(above, name) as part:
        fd = os.open(part, NEW_FILE, _mode(member), dir_fd=above)
        with source, open(fd, "wb") as file:
            shutil.copyfileobj(source, file)
            file.flush()
            with contextlib.suppress(OSError, ValueError, OverflowError):  # An impossible time.
                os.utime(fd, (member.mtime, member.mtime))


@contextlib.contextmanager
def _replacing(above: int, name: str) -> Iterator[str]:
    try:
        with replacing(above, name) as part:
            yield part
    except IsADirectoryError:
        raise _in_the_way(name, "a folder here and a file in the sandbox") from None


def _mode(member: tarfile.TarInfo) -> int:
    """Readable for its owner, executable where it was, without setuid and setgid."""
    return (member.mode & 0o755 if member.mode & 0o100 else member.mode & 0o644) | 0o600


def _remove_links_out(folder: Path, top: int, plan: _Plan) -> list[str]:
    """A link may lead out by way of other links, also those that were here before: that can only be
    told when all are in place."""
    out = [steps for steps in plan.links if not leads_inside(folder, steps)]
    for steps in out:
        with _descended(top, steps[:-1]) as above:
            os.unlink(steps[-1], dir_fd=above)
    return ["/".join(steps) for steps in out]
