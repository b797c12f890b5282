"""Walking folders of the box in small slices.

The generators yield None after every slice of work, so that the warden can serve others in between.
"""

import errno
import heapq
import os
import stat
from itertools import islice
from typing import Callable, Dict, Generator, Iterator, List, NamedTuple, Optional, Tuple

from .errors import Refused
from .processes import is_warden

MAX_DEPTH = 256
_NAMES_BYTES = 32 << 20
"""Most bytes of names in memory, for one folder and for all folders yet to be walked."""
_NAME_COST = 64
_SCAN_SLICE = 2000
_LOOK_SLICE = 100
FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not O_DIRECTORY, with which gVisor follows links: what is no folder fails where it is used."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

BEING_RECEIVED: Dict[str, str] = {}
"""Names of files that are being uploaded: random ones, which nobody is to see."""

Inode = Tuple[int, int]
"""Device and number."""

LeftOut = Callable[[str, str], None]
"""Called with a path below the root, and why it is left out."""


class Item(NamedTuple):
    """An entry of a folder, which is open until the walk is advanced."""

    folder: int
    name: str
    path: str
    """Below the root of the walk."""
    status: os.stat_result


class Walk:
    """Everything below a folder: first its entries by name, then each of its folders.

    room: how many more items are wanted; one more may be yielded, so the caller sees that there
    are more. enter: whether to look into a folder. depth: of folders in folders.
    """

    def __init__(
        self,
        root: int,
        *,
        recursive: bool,
        left_out: LeftOut,
        room: Optional[Callable[[], int]],
        enter: Callable[[Item], bool] = lambda _item: True,
        depth: int = MAX_DEPTH,
    ) -> None:
        self._enter = enter
        self._depth = depth
        self._root = root
        self._recursive = recursive
        self._left_out = left_out
        self._room = room
        self._todo: List[Tuple[str, List[str]]] = [("", [""])]
        self._held = _NAME_COST

    def __iter__(self) -> Iterator[Optional[Item]]:
        """Raises Refused if all names are wanted and they do not fit in memory."""
        folder, at = -1, None
        try:
            while self._todo:
                parent, names = self._todo[-1]
                if not names:
                    self._todo.pop()
                    continue
                name = self._forget(names)
                path = os.path.join(parent, name)
                try:
                    inside = parent == at  # Usually it is in the previous one.
                    new = _open(folder, name) if inside else descend(self._root, path)
                except OSError as exc:
                    self._report(path, exc)
                    continue
                if folder >= 0:
                    os.close(folder)
                folder, at = new, path
                yield from self._items(folder, path)
        finally:
            if folder >= 0:
                os.close(folder)

    def _items(self, folder: int, path: str) -> Iterator[Optional[Item]]:
        most = None if self._room is None else self._room() + 1
        names, cut = yield from _sorted_names(folder, most)
        if cut and most is None:
            raise _too_many("names in %s" % (path[-200:] or "the folder"))
        if cut:
            self._left_out(path, "it has more entries than requested")
        below: List[str] = []
        for number, name in enumerate(names):
            if number % _LOOK_SLICE == 0:
                yield None
            if name in BEING_RECEIVED:
                continue
            try:
                status = os.lstat(name, dir_fd=folder)
            except OSError as exc:
                self._report(os.path.join(path, name), exc)
                continue
            item = Item(folder, name, os.path.join(path, name), status)
            if self._recursive and stat.S_ISDIR(status.st_mode) and self._may_enter(item):
                below.append(name)
            yield item
        self._remember(path, below)

    def _may_enter(self, item: Item) -> bool:
        if is_warden(item.folder, item.name):
            self._left_out(item.path, "it is the process that serves files here")
            return False
        return self._enter(item)

    def _remember(self, path: str, folders: List[str]) -> None:
        if not folders:
            return
        if path.count("/") + bool(path) >= self._depth:
            for name in folders:
                why = "nested more than %d folders deep" % self._depth
                self._left_out(os.path.join(path, name), why)
            return
        self._held += sum(len(name) + _NAME_COST for name in folders)
        if self._held > _NAMES_BYTES:
            raise _too_many("folders")
        self._todo.append((path, folders[::-1]))

    def _forget(self, names: List[str]) -> str:
        name = names.pop()
        self._held -= len(name) + _NAME_COST
        return name

    def _report(self, path: str, error: OSError) -> None:
        if error.errno not in _GONE:  # Deleted meanwhile: not worth reporting.
            self._left_out(path, error.strerror or str(error))


def _too_many(what: str) -> Refused:
    message = "too many %s to hold in memory: pack them with tar in the box"
    return Refused("file_too_large", message % what)


def _open(folder: int, name: str) -> int:
    return os.open(name, FOLDER, dir_fd=folder)


def descend(root: int, path: str) -> int:
    """Reopen a folder from the root without following links: two descriptors at any depth."""
    folder = _open(root, ".")
    for step in path.split("/") if path else ():
        parent = folder
        try:
            folder = _open(parent, step)
        finally:
            os.close(parent)
    return folder


def inode_of(folder: int) -> Inode:
    info = os.fstat(folder)
    return info.st_dev, info.st_ino


def _sorted_names(
    folder: int, most: Optional[int]
) -> Generator[None, None, Tuple[Iterator[str], bool]]:
    """The first names in a folder, up to `most` and the memory limit, and whether there are more.
    Sorted in runs, since sorting all at once would block for too long."""
    names = _Names(most)
    with os.scandir(folder) as found:
        for number, entry in enumerate(found, start=1):
            names.add(entry.name)
            if number % _SCAN_SLICE == 0:
                names.settle()
                yield None
    names.settle()
    return names.first()


class _Names:
    """Keeps the smallest of any number of names."""

    def __init__(self, most: Optional[int]) -> None:
        self._most = most
        self._runs: List[List[str]] = []
        self._new: List[str] = []
        self._ceiling: Optional[str] = None
        """Names below it are kept, others dropped."""
        self._count = self._bytes = 0

    def add(self, name: str) -> None:
        if self._ceiling is None or name < self._ceiling:
            self._new.append(name)
            self._count += 1
            self._bytes += len(name) + _NAME_COST

    def settle(self) -> None:
        self._new.sort()
        self._runs.append(self._new)
        self._new = []
        many = self._most is not None and self._count > 2 * self._most
        if many or self._bytes > _NAMES_BYTES:
            half = self._count // 2
            self._cut(half if self._most is None else min(half, self._most))

    def _cut(self, keep: int) -> None:
        smallest = list(islice(heapq.merge(*self._runs), keep + 1))
        self._ceiling = smallest.pop()
        self._runs = [smallest]
        self._count = len(smallest)
        self._bytes = sum(map(len, smallest)) + _NAME_COST * self._count

    def first(self) -> Tuple[Iterator[str], bool]:
        most = self._count if self._most is None else self._most
        more = self._ceiling is not None or self._count > most
        return islice(heapq.merge(*self._runs), most), more
