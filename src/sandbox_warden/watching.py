"""Folders that are watched: what is made, written, renamed and removed in them.

Watches belong to the box, not to a stream: whoever comes back goes on reading where it was.
"""

import errno
import os
from collections import deque
from typing import Any, Deque, Dict, Generator, Iterator, List, Optional, Tuple

from . import inotify
from .errors import Refused, refusal
from .files import describe, type_of
from .inotify import Change, Inotify
from .loop import READ, Loop
from .paths import find
from .processes import is_warden
from .uploads import BEFORE_SHOWN, ON_STORED, REPLACING, UNNAMED
from .walk import BEING_RECEIVED, descend, inode_of
from .watch_log import Watch

MAX_WATCHES = 32
MAX_FOLDERS = 8192
"""Of all watches."""
UNUSED_S = 300.0
"""A watch that nobody has read for so long ends."""
_TICK_S = 15.0
_SLICE = 100
_MOST_SEEN = 10_000
_TURNS = 8
"""Reads of inotify before others have their turn."""

_KINDS = (
    (inotify.CREATE | inotify.MOVED_TO, "create"),
    (inotify.MODIFY | inotify.CLOSE_WRITE, "write"),
    (inotify.ATTRIB, "chmod"),
    (inotify.DELETE, "remove"),
    (inotify.MOVED_FROM, "rename"),
)
_OF_ITSELF = (
    (inotify.DELETE_SELF, "remove"),
    (inotify.MOVE_SELF, "rename"),
    (inotify.ATTRIB, "chmod"),
    (inotify.UNMOUNT, "gap"),
)

Place = Tuple[Watch, str]
"""A watch, and a folder relative to its root."""


class Watches:
    def __init__(self, loop: Loop) -> None:
        """Raises Refused if there is no inotify to be had."""
        self._loop = loop
        self._inotify = Inotify()
        self._watches: Dict[str, Watch] = {}
        self._places: Dict[int, List[Place]] = {}
        """By the number of a folder: one may be in several watches."""
        self._replacing: Dict[int, bool] = {}
        """By cookie, of hidden names: whether what they become is replaced by it."""
        self._scans: Deque[Iterator[None]] = deque()
        loop.watch(self._inotify.fd, READ, lambda _events: self._turn())
        loop.after(_TICK_S, self._end_unused)
        BEFORE_SHOWN.append(self._drain)
        ON_STORED.append(self._stored)

    def start(self, path: str, *, recursive: bool) -> Generator[None, None, Dict[str, Any]]:
        """Watch a folder from now on, with those in it if recursive. Raises Refused."""
        if len(self._watches) >= MAX_WATCHES:
            message = "%d folders of this sandbox are watched already; end one of these watches"
            raise Refused("exhausted", message % MAX_WATCHES)
        found = find(path, follow=True)
        inode = inode_of(found.folder)
        os.close(found.folder)
        if found.name:
            describe(found.path)  # Raises Refused if it does not exist.
            message = "%s is not a folder; watch the folder it is in"
            raise Refused("invalid_path", message % found.path)
        watch = Watch(found.path, inode, recursive=recursive)
        self._watches[watch.ident] = watch
        try:
            yield from self._place(watch, "", tell=False)
        except BaseException:
            self.end(watch.ident)
            raise
        return {"watch_id": watch.ident, "position": 0, "path": watch.path}

    def get(self, ident: str) -> Watch:
        """Raises Refused."""
        try:
            return self._watches[ident]
        except KeyError:
            message = "no watch %s: it was ended, or not read for %d s; make a new one"
            raise Refused("watch_not_found", message % (ident[:32], UNUSED_S)) from None

    def end(self, ident: str) -> bool:
        """Whether there was such a watch."""
        watch = self._watches.pop(ident, None)
        if watch is None:
            return False
        self._leave(watch, "")
        watch.end()
        return True

    def _end_unused(self) -> None:
        for watch in list(self._watches.values()):
            if watch.idle_s() > UNUSED_S:
                self.end(watch.ident)
        self._loop.after(_TICK_S, self._end_unused)

    # Folders

    def _place(self, watch: Watch, top: str, *, tell: bool) -> Iterator[None]:
        """Watch a folder, and those in it if the watch is recursive. tell: what is in them was made
        before they were watched. Raises Refused if it is the root and cannot be watched."""
        todo = [top]
        while todo and not watch.ended:
            at = todo.pop()
            try:
                yield from self._place_one(watch, at, todo, tell=tell)
            except FileNotFoundError:
                continue
            except (OSError, Refused) as exc:
                if not at:
                    raise exc if isinstance(exc, Refused) else refusal(exc, watch.path) from None
                watch.log("gap", at, "directory")
            yield

    def _place_one(self, watch: Watch, at: str, todo: List[str], *, tell: bool) -> Iterator[None]:
        """Raises OSError, Refused."""
        folder = open_below(watch, at)
        try:
            self._add(watch, at, folder)
            if not watch.recursive:
                return
            with os.scandir(folder) as found:
                for number, each in enumerate(found, start=1):
                    if number % _SLICE == 0:
                        yield
                        if watch.ended:
                            return
                    if each.name in BEING_RECEIVED or is_warden(folder, each.name):
                        continue
                    path = os.path.join(at, each.name)
                    if tell and path not in watch.seen:
                        if len(watch.seen) < _MOST_SEEN:
                            watch.seen.add(path)
                        watch.log("create", path, type_of(each.stat(follow_symlinks=False)))
                    if each.is_dir(follow_symlinks=False):
                        todo.append(path)
        finally:
            os.close(folder)

    def _add(self, watch: Watch, at: str, folder: int) -> None:
        if len(self._places) >= MAX_FOLDERS:
            message = "more than %d folders would be watched; watch a folder with fewer in it"
            raise Refused("exhausted", message % MAX_FOLDERS)
        number = self._inotify.add(folder)
        places = self._places.setdefault(number, [])
        if (watch, at) not in places:
            places.append((watch, at))
        watch.folders[at] = number

    def _leave(self, watch: Watch, top: str) -> None:
        """Watch a folder no more, nor those in it."""
        for at in [at for at in watch.folders if not top or (at + "/").startswith(top + "/")]:
            number = watch.folders.pop(at)
            places = self._places.get(number, [])
            if (watch, at) in places:
                places.remove((watch, at))
            if not places:
                self._places.pop(number, None)
                self._inotify.remove(number)

    def _scan(self, watch: Watch, top: str, *, tell: bool) -> None:
        """Place watches in the next turns of the loop."""
        self._later(self._place(watch, top, tell=tell))

    def _later(self, work: Iterator[None]) -> None:
        self._scans.append(work)
        if len(self._scans) == 1:
            self._loop.after(0, self._scan_on)

    def _scan_on(self) -> None:
        try:
            next(self._scans[0])
        except StopIteration:
            self._scans.popleft()
        except (OSError, Refused):
            self._scans.popleft()  # The root: that it is gone is told by its events.
        if self._scans:
            self._loop.after(0, self._scan_on)

    # Changes

    def _turn(self) -> None:
        """Read what has changed, up to a limit: the rest is read after others had their turn."""
        for _ in range(_TURNS):
            if not self._read():
                break

    def _drain(self) -> None:
        while self._read():
            pass

    def _read(self) -> bool:
        """False if there was nothing more."""
        read = False
        for change in self._inotify.read():
            read = True
            self._take(change)
        if not read:
            self._replacing.clear()
            for watch in () if self._scans else self._watches.values():
                watch.seen.clear()
        return read

    def _take(self, change: Change) -> None:
        if change.mask & inotify.OVERFLOW:
            self._lost()
        elif change.mask & inotify.IGNORED:
            for watch, at in self._places.pop(change.folder, []):
                watch.folders.pop(at, None)
        elif change.name in BEING_RECEIVED or change.name in UNNAMED:
            if change.mask & inotify.MOVED_FROM:
                self._replacing[change.cookie] = change.name in REPLACING
        elif not (change.mask & inotify.MOVED_TO and self._replacing.get(change.cookie)):
            for watch, at in list(self._places.get(change.folder, ())):
                if change.name:
                    self._changed(watch, os.path.join(at, change.name), change)
                elif not at:
                    kind = next((kind for mask, kind in _OF_ITSELF if change.mask & mask), None)
                    if kind is not None:
                        watch.log(kind, "", "directory")

    def _lost(self) -> None:
        """More has changed than the kernel keeps. New folders may be among it."""
        for watch in self._watches.values():
            watch.log("gap", "")
            if watch.recursive:
                self._scan(watch, "", tell=False)

    def _changed(self, watch: Watch, path: str, change: Change) -> None:
        kind = next((kind for mask, kind in _KINDS if change.mask & mask), None)
        if kind is None:
            return
        folder = bool(change.mask & inotify.IS_FOLDER)
        if kind == "create":
            self._created(watch, path, folder=folder)
            return
        if kind in ("remove", "rename"):
            watch.seen.discard(path)
            if folder:
                self._leave(watch, path)
        watch.log(kind, path, "directory" if folder else "file" if kind == "write" else None)

    def _created(self, watch: Watch, path: str, *, folder: bool) -> None:
        if path in watch.seen:
            watch.seen.discard(path)
            return
        watch.log("create", path, "directory" if folder else _type_at(watch, path))
        if folder and watch.recursive:
            self._scan(watch, path, tell=True)

    def _stored(self, path: str, is_new: bool) -> None:
        """A file was uploaded. That it was made is told by inotify, that it got its mode and was
        written is not: it had another name then, or none."""
        self._drain()
        for watch in self._watches.values():
            folder = os.path.dirname(path)
            below = "" if folder == watch.path else os.path.relpath(folder, watch.path)
            path_below = os.path.join(below, os.path.basename(path))
            told = self._told_written(watch, path_below, is_new)
            if below in watch.folders:
                next(told, None)
            elif watch.recursive and not below.startswith(".."):
                self._later(told)  # Its folder is new, and about to be looked at.

    def _told_written(self, watch: Watch, path: str, is_new: bool) -> Iterator[None]:
        if os.path.dirname(path) in watch.folders:
            if is_new:
                watch.log("chmod", path)
            watch.log("write", path, "file")
        return
        yield


def open_below(watch: Watch, path: str) -> int:
    """Open a folder of a watch. Raises OSError, Refused; FileNotFoundError too if the root is not
    what is watched any more."""
    root = find(watch.path, follow=True)
    try:
        if root.name or inode_of(root.folder) != watch.inode:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return descend(root.folder, path)
    finally:
        os.close(root.folder)


def _type_at(watch: Watch, path: str) -> Optional[str]:
    """What is at a path now; None if it is gone."""
    try:
        folder = open_below(watch, os.path.dirname(path))
    except (OSError, Refused):
        return None
    try:
        return type_of(os.lstat(os.path.basename(path), dir_fd=folder))
    except OSError:
        return None
    finally:
        os.close(folder)
