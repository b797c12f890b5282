"""Moving files and folders, also from one disk to another.

The generators yield after every slice of work, so that the warden can serve others in between.
"""

import errno
import os
import stat
from typing import Any, Dict, Generator, Iterator, List, Tuple

from . import metadata
from .errors import Refused, shown
from .files import FILE, entry_of
from .paths import VOLUMES, Found, find, found_at, refusal_at
from .removing import remove_tree
from .tree import PIECE, extents, write_at
from .uploads import forget, hide
from .walk import FOLDER, Item, Walk, descend

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Moved = Generator[None, None, Dict[str, Any]]


def rename(path: str, to: str, *, replace: bool) -> Moved:
    """Move a file, folder or link; returns its new entry. Missing folders are created. An existing
    target is replaced only with `replace`, a folder never. If it fails, the source is as it was."""
    with found_at(path, follow=False, write=True) as source:
        if not source.name or source.path in VOLUMES:
            message = "%s is a folder of the box itself and cannot be moved"
            raise Refused("invalid_path", message % source.path)
        os.lstat(source.name, dir_fd=source.folder)
        # The kernel refuses to move a folder into itself, but by then folders would be created.
        target = find(to, follow=False, create=True, not_below=source.path)
        try:
            _check_target(target, replace=replace)
            yield from _move(source, target, replace=replace)
            return entry_of(target.folder, target.name, target.path)
        finally:
            os.close(target.folder)


def _check_target(target: Found, *, replace: bool) -> None:
    """Raises Refused."""
    try:
        there = os.lstat(target.name, dir_fd=target.folder) if target.name else None
    except FileNotFoundError:
        return
    if there is None or stat.S_ISDIR(there.st_mode):
        raise Refused("is_directory", "%s is a folder; add a file name" % target.path)
    if not replace:
        raise Refused("invalid_path", "%s exists; set replace to overwrite it" % target.path)


def _move(source: Found, target: Found, *, replace: bool) -> Iterator[None]:
    try:
        os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
        return
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
    part = hide(os.path.dirname(target.path))
    try:
        yield from _copied(source, target, part)
        _check_target(target, replace=replace)
        os.rename(part, target.name, src_dir_fd=target.folder, dst_dir_fd=target.folder)
    except Exception:
        yield from _discarded(target.folder, part)
        raise
    finally:
        forget(part)
    yield from _removed(source.folder, source.name, source.path)


def _copied(source: Found, target: Found, part: str) -> Iterator[None]:
    """Copy to the name `part` beside the target. Raises OSError, Refused."""
    try:
        yield from _Copy(target.folder, part).all(source)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise refusal_at(target.path, target.folder, exc) from None
        raise


def _discarded(folder: int, part: str) -> Iterator[None]:
    try:
        yield from _removed(folder, part, part)
    except (OSError, Refused):
        pass  # It was not made, or somebody was faster.


def _removed(folder: int, name: str, path: str) -> Iterator[None]:
    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        yield from remove_tree(folder, name, path)
    else:
        os.unlink(name, dir_fd=folder)


class _Copy:
    """Copies files with their modes, times, links and holes."""

    def __init__(self, folder: int, part: str) -> None:
        """part: the name of the copy in the open folder."""
        self._folder = folder
        self._part = part
        self._first: Dict[Tuple[int, int], str] = {}
        """The path in the copy of files that have several names."""
        self._folders: List[Tuple[str, os.stat_result]] = []
        """Modes and times are set at the end: whatever is made in a folder changes those."""

    def all(self, source: Found) -> Iterator[None]:
        info = os.lstat(source.name, dir_fd=source.folder)
        if not stat.S_ISDIR(info.st_mode):
            item = Item(source.folder, source.name, "", info)
            yield from self._one(item, self._folder, self._part)
            return
        _check_removable(source.folder, source.name, info, source.path)
        root = os.open(source.name, FOLDER, dir_fd=source.folder)
        try:
            os.mkdir(self._part, 0o700, dir_fd=self._folder)
            copy = os.open(self._part, FOLDER, dir_fd=self._folder)
            try:
                yield from self._tree(root, copy, info, source.path)
            finally:
                os.close(copy)
        finally:
            os.close(root)

    def _tree(self, root: int, copy: int, info: os.stat_result, path: str) -> Iterator[None]:
        folder, at = os.dup(copy), ""
        try:
            for item in Walk(root, recursive=True, left_out=_fail(path), room=None):
                if item is None:
                    yield
                    continue
                parent = os.path.dirname(item.path)
                if parent != at:
                    os.close(folder)
                    folder, at = descend(copy, parent), parent
                if stat.S_ISDIR(item.status.st_mode):
                    where = os.path.join(path, item.path)
                    _check_removable(item.folder, item.name, item.status, where)
                    os.mkdir(item.name, 0o700, dir_fd=folder)
                    self._folders.append((item.path, item.status))
                elif not self._linked(item, copy, folder):
                    yield from self._one(item, folder, item.name)
        finally:
            os.close(folder)
        for below, about in [*reversed(self._folders), ("", info)]:
            made = descend(copy, below)
            _finish(made, about)
            os.close(made)

    def _linked(self, item: Item, copy: int, folder: int) -> bool:
        """Whether it is another name of a file that is already copied."""
        if item.status.st_nlink < 2:
            return False
        first = self._first.setdefault((item.status.st_dev, item.status.st_ino), item.path)
        if first == item.path:
            return False
        os.link(first, item.name, src_dir_fd=copy, dst_dir_fd=folder, follow_symlinks=False)
        return True

    def _one(self, item: Item, folder: int, name: str) -> Iterator[None]:
        info = item.status
        if stat.S_ISREG(info.st_mode):
            yield from _copy_file(item, folder, name)
        elif stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(item.name, dir_fd=item.folder), name, dir_fd=folder)
            _set_time(folder, name, info)
        elif stat.S_ISFIFO(info.st_mode):
            os.mkfifo(name, 0o600, dir_fd=folder)
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=folder)
            _set_time(folder, name, info)
        else:
            message = (
                "%s is neither a file, a folder nor a link, and cannot be moved to another disk"
            )
            raise Refused("not_a_file", message % shown(item.path or item.name))


def _copy_file(item: Item, folder: int, name: str) -> Iterator[None]:
    read = os.open(item.name, FILE, dir_fd=item.folder)
    try:
        info = os.fstat(read)
        write = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            for start, end in extents(read, info.st_size):
                while start < end:
                    data = os.pread(read, min(PIECE, end - start), start)
                    if not data:
                        break  # Truncated meanwhile.
                    write_at(write, memoryview(data), start)
                    start += len(data)
                    yield
            os.ftruncate(write, info.st_size)
            metadata.copy(read, write)
            _finish(write, info)
        finally:
            os.close(write)
    finally:
        os.close(read)


def _check_removable(folder: int, name: str, info: os.stat_result, path: str) -> None:
    """Before anything is copied that could not be removed afterwards. Raises Refused."""
    if info.st_uid == os.geteuid() or os.access(name, os.W_OK | os.X_OK, dir_fd=folder):
        return
    message = "%s belongs to another user, and what is in it cannot be moved; copy it instead"
    raise Refused("permission_denied", message % shown(path))


def _fail(path: str) -> Any:
    def left_out(below: str, why: str) -> None:
        raise Refused("invalid_path", "%s: %s" % (shown(os.path.join(path, below)), why))

    return left_out


def _finish(fd: int, info: os.stat_result) -> None:
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.fchmod(fd, stat.S_IMODE(info.st_mode))


def _set_time(folder: int, name: str, info: os.stat_result) -> None:
    times = (info.st_atime_ns, info.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
