"""filesystem.Filesystem: what there is, making, moving and removing it, and watching folders: by
asking for events again and again, or as a stream of them."""

from __future__ import annotations

import posixpath
import stat
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from starlette.responses import Response

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import FileMissing, InvalidPath, InvalidRequest, SandboxError
from sandbox_server.api.e2b.errors import AlreadyExists, EventsMissing
from sandbox_server.api.e2b.messages import (
    Message,
    Parsed,
    json_answer,
    message_stream,
    one_message,
    parsed,
    timeout_s,
)
from sandbox_server.api.e2b.routes import BoxRoute, Door, InBox, check_user, full_path

SERVICE = "/filesystem.Filesystem"
_MOST = 100_000
_WAIT_S = 20.0
_REMEMBERED = 10_000
_KEEP_ALIVE: dict[str, Any] = {"keepalive": {}}
_TYPES = ("file", "directory", "symlink")
_KINDS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR}


class OfPath(Message):
    path: str = ""


class ListDir(OfPath):
    depth: int = Field(1, ge=0, le=256)


class Move(Message):
    source: str = Field(min_length=1)
    destination: str = Field(min_length=1)


def filesystem_routes(door: Door) -> list[BoxRoute]:
    watching = Watching()
    handlers = {
        "Stat": stat_path, "ListDir": list_dir, "MakeDir": make_dir, "Move": move, "Remove": remove,
        "CreateWatcher": watching.create, "GetWatcherEvents": watching.events,
        "RemoveWatcher": watching.remove, "WatchDir": watching.stream,
    }  # fmt: skip
    return [
        BoxRoute(door, "POST", f"{SERVICE}/{name}", handler) for name, handler in handlers.items()
    ]


async def stat_path(box: InBox) -> Response:
    request = await _asked(box, OfPath)
    found = await box.sandboxes.stat(box.target, full_path(request.path))
    return json_answer({"entry": entry_info(found)})


async def list_dir(box: InBox) -> Response:
    request = await _asked(box, ListDir)
    path = full_path(request.path)
    found = await box.sandboxes.list_files(
        box.target, path=path, depth=request.depth or 1, limit=_MOST
    )
    if [each.name for each in found.entries] == [posixpath.basename(path)]:
        await _require_folder(box, path)  # A file is listed as itself.
    if found.truncated:
        raise InvalidRequest(f"{path} has more than {_MOST} entries; list a folder in it")
    in_order = sorted(found.entries, key=lambda each: each.path.split("/"))  # Folders, then theirs.
    return json_answer({"entries": [entry_info(each) for each in in_order]})


async def _require_folder(box: InBox, path: str) -> None:
    """Raises InvalidPath."""
    if (await box.sandboxes.stat(box.target, path, follow=True)).type != "directory":
        raise InvalidPath(f"path is not a directory: {path}")


async def make_dir(box: InBox) -> Response:
    request = await _asked(box, OfPath)
    made = await box.sandboxes.mkdir(box.target, full_path(request.path))
    if not made.created:
        raise AlreadyExists(f"directory already exists: {made.entry.path}")
    return json_answer({"entry": entry_info(made.entry)})


async def move(box: InBox) -> Response:
    request = await _asked(box, Move)
    wanted = models.checked(
        models.RenameRequest,
        session_id=box.session_id,
        path=full_path(request.source),
        to=full_path(request.destination),
        replace=True,
    )
    return json_answer({"entry": entry_info(await box.sandboxes.call(op.RENAME, wanted))})


async def remove(box: InBox) -> Response:
    """What is not there is removed already."""
    request = await _asked(box, OfPath)
    with suppress(FileMissing):
        await box.sandboxes.remove(box.target, full_path(request.path))
    return json_answer({})


async def _asked(box: InBox, model: type[Parsed]) -> Parsed:
    check_user(box.http)
    return parsed(model, await box.asked.body())


def entry_info(entry: models.FileEntry) -> dict[str, Any]:
    """A link has type and mode of what it leads to, as at e2b, and its own permissions. One that
    leads nowhere stays a link: the SDK leaves out of lists what has no type."""
    if entry.type == "symlink":
        return _link_info(entry)
    return _info(entry, entry.type, int(entry.mode, 8))


def _link_info(link: models.FileEntry) -> dict[str, Any]:
    end = link.leads_to
    if end is None or end.type == "symlink":
        said = posixpath.join(posixpath.dirname(link.path), link.target or "")
        info = _info(link, "symlink", int(link.mode, 8))
        info["symlinkTarget"] = posixpath.normpath(said)
    else:
        info = {**_info(link, end.type, int(end.mode, 8)), "symlinkTarget": end.path}
    own = stat.filemode(int(link.mode, 8) | stat.S_IFLNK)
    return {**info, "permissions": f"L{own[1:]}"}


def _info(entry: models.FileEntry, kind: str, mode: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": entry.name,
        "type": f"FILE_TYPE_{kind.upper() if kind in _TYPES else 'UNSPECIFIED'}",
        "path": entry.path,
        "size": str(entry.size),
        "mode": mode,
        "permissions": stat.filemode(mode | _KINDS.get(kind, 0)),
        "owner": entry.owner,
        "group": entry.group,
        "modifiedTime": entry.modified_at.isoformat(),
    }
    if entry.metadata:
        info["metadata"] = entry.metadata
    return info


# Watching


class Watched(Message):
    path: str = ""
    recursive: bool = False
    include_entry: bool = False


class OfWatcher(Message):
    watcher_id: str = ""


class Watching:
    """How far watchers have been read is in memory: a client that goes on at another process is
    told again what it has seen."""

    def __init__(self) -> None:
        self._reached: dict[tuple[str, str], int] = {}

    async def create(self, box: InBox) -> Response:
        request = await _asked(box, Watched)
        watch = await _watch(box, request)
        self._reach(box, watch.watch_id, watch.position)
        watcher = Watcher(watch.watch_id, watch.path if request.include_entry else None)
        return json_answer({"watcherId": str(watcher)})

    async def events(self, box: InBox) -> Response:
        """All there are since the last call. Raises EventsMissing."""
        watcher = await _named(box)
        found: list[models.FileChange] = []
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


async def _watch(box: InBox, request: Watched) -> models.FileWatch:
    wanted = models.checked(
        models.WatchFilesRequest,
        session_id=box.session_id,
        path=full_path(request.path),
        recursive=request.recursive,
    )
    return await box.sandboxes.call(op.WATCH, wanted)


async def _read(
    box: InBox, watch_id: str, after: int, *, wait_s: float = 0.0
) -> models.FileChangeList:
    request = models.checked(
        models.FileChangesRequest,
        session_id=box.session_id,
        watch_id=watch_id,
        after=after,
        wait=wait_s,
    )
    return await box.sandboxes.call(op.WATCH_EVENTS, request)


async def _unwatch(box: InBox, watch_id: str) -> None:
    request = models.checked(models.FileWatchTarget, session_id=box.session_id, watch_id=watch_id)
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


async def _told(box: InBox, change: models.FileChange, root: str | None) -> dict[str, Any]:
    """Raises EventsMissing."""
    if change.kind == "gap":
        raise EventsMissing("events are missing: too much has changed at once; list the folder")
    event: dict[str, Any] = {"name": change.path, "type": f"EVENT_TYPE_{change.kind.upper()}"}
    if root is not None and change.type is not None:
        with suppress(FileMissing):  # It is gone by now.
            found = await box.sandboxes.stat(box.target, posixpath.join(root, change.path))
            event["entry"] = entry_info(found)
    return event
