"""Removing files and folders, a little at a time.

The generators yield after every slice of work, so that the warden can serve others in between.
"""

import errno
import os
import stat
from typing import Generator, Iterator, List, Tuple

from .errors import Refused, shown
from .paths import VOLUMES, found_at
from .walk import FOLDER, Inode, inode_of

_SLICE = 100
"""Names removed in one go."""
_AGAIN = 100
"""How often files are removed again that were made in a folder while it was removed."""
_ABILITY = 0o700
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


def remove(path: str, *, recursive: bool) -> Generator[None, None, None]:
    """Remove a file, a link (not what it leads to), or a folder with all in it. Raises Refused."""
    with found_at(path, follow=False, write=True) as found:
        if not found.name or found.path in VOLUMES:
            message = "%s is a folder of the box itself and cannot be removed; remove what is in it"
            raise Refused("invalid_path", message % found.path)
        info = os.lstat(found.name, dir_fd=found.folder)
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(found.name, dir_fd=found.folder)
        elif recursive:
            yield from remove_tree(found.folder, found.name, found.path)
        else:
            try:
                os.rmdir(found.name, dir_fd=found.folder)
            except OSError as exc:
                if exc.errno not in _NOT_EMPTY:
                    raise
                message = "%s is a folder with something in it; set recursive to remove it all"
                raise Refused("invalid_path", message % shown(found.path)) from None


def remove_tree(parent: int, name: str, path: str) -> Iterator[None]:
    """Remove a folder with all in it, from the bottom up, with two descriptors at any depth. Raises
    OSError, and Refused at a disk of its own. path: for messages."""
    _open_up(parent, name)
    root = os.open(name, FOLDER, dir_fd=parent)
    try:
        yield from _Emptying(root, path).all()
    finally:
        os.close(root)
    os.rmdir(name, dir_fd=parent)


class _Emptying:
    """Removes what is in an open folder."""

    def __init__(self, root: int, path: str) -> None:
        self._root = root
        self._path = path
        self._at = os.dup(root)
        self._above: List[Tuple[str, Inode]] = []
        """The folders from the root to where it is at: each one's name, and its folder."""
        self._device = os.fstat(root).st_dev
        self._again = _AGAIN

    def all(self) -> Iterator[None]:
        left = ""
        try:
            while True:
                inner = yield from self._emptied()
                if inner:
                    self._again -= inner == left  # Something was made in it meanwhile.
                    if not self._again:
                        message = "%s is written to while it is removed; end what writes there"
                        raise Refused("conflict", message % shown(self._path))
                    self._down(inner)
                elif self._above:
                    left = self._up()  # It is removed as an empty one, from its own folder.
                else:
                    return
        finally:
            os.close(self._at)

    def _down(self, name: str) -> None:
        try:
            inner = os.open(name, FOLDER, dir_fd=self._at)
        except FileNotFoundError:  # Somebody else has removed it.
            return
        self._above.append((name, inode_of(self._at)))
        os.close(self._at)
        self._at = inner

    def _up(self) -> str:
        """Returns the name of where it was."""
        name, inode = self._above.pop()
        parent = os.open("..", FOLDER, dir_fd=self._at)
        os.close(self._at)
        self._at = parent
        if inode_of(parent) != inode:  # It was moved away meanwhile.
            os.close(parent)
            self._at = os.dup(self._root)
            self._above = []
        return name

    def _emptied(self) -> Generator[None, None, str]:
        """Empty the folder it is at, up to one in it that is not empty; the name of that."""
        with os.scandir(self._at) as found:
            for number, each in enumerate(found, start=1):
                if number % _SLICE == 0:
                    yield
                if not self._is_removed(self._at, each.name):
                    yield
                    return each.name
        yield
        return ""

    def _is_removed(self, folder: int, name: str) -> bool:
        """Not if it is a folder with something in it."""
        try:
            info = os.lstat(name, dir_fd=folder)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=folder)
                return True
            if info.st_dev != self._device:
                message = "%s is a disk of its own and cannot be removed"
                where = os.path.join(self._path, *(name for name, _ in self._above), name)
                raise Refused("invalid_path", message % shown(where))
            os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError as exc:
            if exc.errno not in _NOT_EMPTY:
                raise
            _open_up(folder, name)
            return False
        return True


def _open_up(folder: int, name: str) -> None:
    """Make a folder of ours one that can be emptied, whatever its mode. What fails is told when it
    is emptied."""
    mode = stat.S_IMODE(os.lstat(name, dir_fd=folder).st_mode)
    if mode & _ABILITY == _ABILITY:
        return
    try:
        opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.chmod("/proc/self/fd/%d" % opened, mode | _ABILITY)
        finally:
            os.close(opened)
    except OSError:
        pass
