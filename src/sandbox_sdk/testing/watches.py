"""The watches of a fake sandbox."""

from __future__ import annotations

import posixpath
import uuid
from dataclasses import dataclass, field

import anyio

from sandbox_sdk.protocol.errors import InvalidRequest, NotFound
from sandbox_sdk.protocol.models import FileChange, FileChangeKind, FileChangeList

_LOOK_S = 0.005


@dataclass
class FakeWatch:
    path: str
    recursive: bool
    events: list[FileChange] = field(default_factory=list)


class FakeWatches:
    """What changes in folders of one sandbox. Nothing is ever dropped."""

    def __init__(self) -> None:
        self._watches: dict[str, FakeWatch] = {}

    def start(self, path: str, *, recursive: bool) -> str:
        ident = uuid.uuid4().hex[:16]
        self._watches[ident] = FakeWatch(path, recursive)
        return ident

    def end(self, ident: str) -> bool:
        return self._watches.pop(ident, None) is not None

    def log(self, kind: FileChangeKind, path: str, what: str | None = "file") -> None:
        for watch in self._watches.values():
            below = posixpath.relpath(path, watch.path)
            if below.startswith("..") or ("/" in below and not watch.recursive):
                continue
            change = {"position": len(watch.events) + 1, "kind": kind, "path": below, "type": what}
            watch.events.append(FileChange.model_validate(change))

    async def read(self, ident: str, *, after: int, wait_s: float) -> FileChangeList:
        """Raises NotFound, InvalidRequest."""
        with anyio.move_on_after(wait_s):
            while len(self._find(ident).events) == after:  # noqa: ASYNC110 - threads log too.
                await anyio.sleep(_LOOK_S)
        events = self._find(ident).events
        if after > len(events):
            raise InvalidRequest(f"after: {after} is no position of this watch")
        return FileChangeList(events=events[after:], position=len(events))

    def _find(self, ident: str) -> FakeWatch:
        try:
            return self._watches[ident]
        except KeyError:
            raise NotFound(f"no watch {ident}: it was ended; make a new one") from None
