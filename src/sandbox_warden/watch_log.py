"""One watch of a folder: what changed there, as far back as it is kept, and who waits for it."""

import os
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from .connection import Connection, Source
from .errors import Refused
from .walk import Inode

MAX_EVENTS = 4096
MAX_BYTES = 512 * 1024
"""Of the paths of all events that are kept."""
_ANSWER_EVENTS = 500
_ANSWER_BYTES = 128 * 1024
_REPEATED = ("write", "chmod")
"""Kinds of which one is as good as several in a row."""
MAX_WAIT_S = 30.0


class Watch:
    """The changes below a folder. Positions count them, from 1 on. Those of the oldest that were
    dropped are missing, and a reader that has not seen them gets a `gap`."""

    def __init__(self, path: str, inode: Inode, *, recursive: bool) -> None:
        """inode: device and number of the folder, which is not kept open: the kernel would not tell
        of its end."""
        self.ident = os.urandom(8).hex()
        self.path = path
        self.inode = inode
        self.recursive = recursive
        self.folders: Dict[str, int] = {}
        """Folders that are watched, relative to the root, and their numbers."""
        self.seen: Set[str] = set()
        """Paths told because they were found in a new folder: that they were made may come yet."""
        self.waiting: Set[Callable[[], None]] = set()
        """Told when there is something to read, or the watch has ended."""
        self.ended = False
        self.position = 0
        self._used_at = time.monotonic()
        self._first = 1
        """The position of the first event that is kept."""
        self._events: Deque[Tuple[str, str, Optional[str]]] = deque()
        self._bytes = 0
        self._read = 0
        """The highest position that was read."""

    def log(self, kind: str, path: str, type_: Optional[str] = None) -> None:
        event = (kind, path or ".", type_)
        unread = self.position > self._read
        if kind in _REPEATED and unread and self._events and self._events[-1][:2] == event[:2]:
            return
        self._events.append(event)
        self.position += 1
        self._bytes += len(event[1])
        while len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:
            self._bytes -= len(self._events.popleft()[1])
            self._first += 1
        for call in list(self.waiting):
            call()

    def read(self, after: int) -> Dict[str, Any]:
        """What came after a position. Raises Refused for one that is yet to come."""
        if not 0 <= after <= self.position:
            message = "after: %d is no position of this watch, which is at %d"
            raise Refused("invalid_request", message % (after, self.position))
        events: List[Dict[str, Any]] = []
        if after + 1 < self._first:
            after = self._first - 1
            events.append(_event(after, ("gap", ".", None)))
        size = 0
        for index in range(after + 1 - self._first, len(self._events)):
            event = self._events[index]
            size += len(event[1])
            if len(events) >= _ANSWER_EVENTS or size > _ANSWER_BYTES:
                break
            after += 1
            events.append(_event(after, event))
        self._read = max(self._read, after)
        return {"events": events, "position": after}

    def used(self) -> None:
        self._used_at = time.monotonic()

    def idle_s(self) -> float:
        return 0.0 if self.waiting else time.monotonic() - self._used_at

    def end(self) -> None:
        self.ended = True
        for call in list(self.waiting):
            call()


def _event(position: int, event: Tuple[str, str, Optional[str]]) -> Dict[str, Any]:
    kind, path, type_ = event
    return {"position": position, "kind": kind, "path": path, "type": type_}


class WatchReading(Source):
    """Answers as soon as something has changed after a position, or with nothing after `wait_s`."""

    def __init__(self, connection: Connection, watch: Watch, *, after: int, wait_s: float) -> None:
        self._watch = watch
        self._after = after
        self._due = False
        watch.read(after)  # Raises Refused.
        self._timer = connection.after(min(max(wait_s, 0.0), MAX_WAIT_S), self._expire)
        watch.waiting.add(self._wake)

    def pull(self) -> Optional[bytes]:
        if self._watch.ended:
            return self.refuse(Refused("watch_not_found", "the watch was ended meanwhile"))
        if self._watch.position == self._after and not self._due:
            return None
        return self.answer(self._watch.read(self._after))

    def _wake(self) -> None:
        self.connection.pump_soon()

    def _expire(self) -> None:
        self._due = True
        self._wake()

    def closed(self) -> None:
        self._timer.cancel()
        self._watch.waiting.discard(self._wake)
        self._watch.used()
