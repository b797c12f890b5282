"""Watching folders: by asking for events again and again, or as a stream of them."""

from __future__ import annotations

import posixpath
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import FileMissing, InvalidRequest, SandboxError
from sandbox_sdk.protocol.models import (
    FileChange,
    FileChangeList,
    FileChangesRequest,
    FileWatch,
    FileWatchTarget,
    WatchFilesRequest,
    checked,
)
from sandbox_server.api.e2b.errors import EventsMissing
from sandbox_server.api.e2b.filesystem import SERVICE, entry_info
from sandbox_server.api.e2b.framing import Message, one_message, parsed
from sandbox_server.api.e2b.paths import full_path
from sandbox_server.api.e2b.routes import BoxRoute, Door, InBox, check_user
from sandbox_server.api.e2b.streams import json_answer, message_stream, timeout_s

_WAIT_S = 20.0
_REMEMBERED = 10_000
_KEEP_ALIVE: dict[str, Any] = {"keepalive": {}}


class Watched(Message):
    path: str = ""
    recursive: bool = False
    include_entry: bool = False


class OfWatcher(Message):
    watcher_id: str = ""


class Watching:
    """How far watchers have been read is in memory: a client that goes on at another process is
    told again what it has seen."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._reached: dict[tuple[str, str], int] = {}

    def routes(self) -> list[BoxRoute]:
        handlers = {
            "CreateWatcher": self.create, "GetWatcherEvents": self.events,
            "RemoveWatcher": self.remove, "WatchDir": self.stream,
        }  # fmt: skip
        return [
            BoxRoute(self._door, "POST", f"{SERVICE}/{name}", handler)
            for name, handler in handlers.items()
        ]

    async def create(self, box: InBox) -> Response:
        check_user(box.http)
        request = parsed(Watched, await box.asked.body())
        watch = await _watch(box, request)
        self._reach(box, watch.watch_id, watch.position)
        watcher = Watcher(watch.watch_id, watch.path if request.include_entry else None)
        return json_answer({"watcherId": str(watcher)})

    async def events(self, box: InBox) -> Response:
        """All there are since the last call. Raises EventsMissing."""
        watcher = await _named(box)
        found: list[FileChange] = []
        after = self._reached.get((box.session_id, watcher.watch_id), 0)
        while (some := await _read(box, watcher.watch_id, after)).events:
            found += some.events
            after = some.position
            self._reach(box, watcher.watch_id, after)
        return json_answer({"events": [await _told(box, each, watcher.root) for each in found]})

    async def remove(self, box: InBox) -> Response:
        watch_id = (await _named(box)).watch_id
        self._reached.pop((box.session_id, watch_id), None)
        await _unwatch(box, watch_id)
        return json_answer({})

    async def stream(self, box: InBox) -> Response:
        check_user(box.http)
        request = parsed(Watched, one_message(await box.asked.body()))
        return await message_stream(
            box,
            _streamed(box, request),
            lambda message: [message],
            keep_alive=_KEEP_ALIVE,
            within_s=timeout_s(box),
        )

    def _reach(self, box: InBox, watch_id: str, position: int) -> None:
        self._reached.pop((box.session_id, watch_id), None)
        self._reached[box.session_id, watch_id] = position
        if len(self._reached) > _REMEMBERED:
            del self._reached[next(iter(self._reached))]


@dataclass(frozen=True)
class Watcher:
    """The id of a watcher: ours of the watch, and the folder where its events have entries."""

    watch_id: str
    root: str | None

    def __str__(self) -> str:
        if self.root is None:
            return self.watch_id
        return f"{self.watch_id}.{urlsafe_b64encode(self.root.encode()).decode()}"

    @classmethod
    def parse(cls, text: str) -> Watcher:
        """Raises InvalidRequest."""
        watch_id, _, root = text.partition(".")
        try:
            decoded = b64decode(root, altchars="-_", validate=True).decode()
        except ValueError:
            raise InvalidRequest("this is not the id of a watcher") from None
        return cls(watch_id, decoded or None)


async def _named(box: InBox) -> Watcher:
    return Watcher.parse(parsed(OfWatcher, await box.asked.body()).watcher_id)


async def _watch(box: InBox, request: Watched) -> FileWatch:
    wanted = checked(
        WatchFilesRequest,
        session_id=box.session_id,
        path=full_path(request.path),
        recursive=request.recursive,
    )
    return await box.sandboxes.call(op.WATCH, wanted)


async def _read(box: InBox, watch_id: str, after: int, *, wait_s: float = 0.0) -> FileChangeList:
    request = checked(
        FileChangesRequest, session_id=box.session_id, watch_id=watch_id, after=after, wait=wait_s
    )
    return await box.sandboxes.call(op.WATCH_EVENTS, request)


async def _unwatch(box: InBox, watch_id: str) -> None:
    request = checked(FileWatchTarget, session_id=box.session_id, watch_id=watch_id)
    await box.sandboxes.call(op.UNWATCH, request)


async def _streamed(box: InBox, request: Watched) -> AsyncIterator[dict[str, Any]]:
    watch = await _watch(box, request)
    root, after = watch.path if request.include_entry else None, watch.position
    try:
        yield {"start": {}}
        while True:
            found = await _read(box, watch.watch_id, after, wait_s=_WAIT_S)
            for each in found.events:
                yield {"filesystem": await _told(box, each, root)}
            after = found.position
    finally:
        with suppress(SandboxError):
            await _unwatch(box, watch.watch_id)


async def _told(box: InBox, change: FileChange, root: str | None) -> dict[str, Any]:
    """Raises EventsMissing."""
    if change.kind == "gap":
        raise EventsMissing("events are missing: too much has changed at once; list the folder")
    event: dict[str, Any] = {"name": change.path, "type": f"EVENT_TYPE_{change.kind.upper()}"}
    if root is not None and change.type is not None:
        with suppress(FileMissing):  # It is gone by now.
            found = await box.sandboxes.stat(box.target, posixpath.join(root, change.path))
            event["entry"] = entry_info(found)
    return event
