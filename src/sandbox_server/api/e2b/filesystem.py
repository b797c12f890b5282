"""filesystem.Filesystem: what there is, and making, moving and removing it."""

from __future__ import annotations

import posixpath
import stat
from contextlib import suppress
from typing import Any

from pydantic import Field
from starlette.responses import Response

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import FileMissing, InvalidPath, InvalidRequest
from sandbox_sdk.protocol.models import FileEntry, RenameRequest, checked
from sandbox_server.api.e2b.errors import AlreadyExists
from sandbox_server.api.e2b.framing import Message, parsed
from sandbox_server.api.e2b.paths import full_path
from sandbox_server.api.e2b.routes import BoxRoute, Door, InBox, check_user
from sandbox_server.api.e2b.streams import json_answer

SERVICE = "/filesystem.Filesystem"
_MOST = 100_000
_TYPES = {
    "file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK",
}  # fmt: skip
_KINDS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR}


class OfPath(Message):
    path: str = ""


class ListDir(OfPath):
    depth: int = Field(1, ge=0, le=256)


class Move(Message):
    source: str = Field(min_length=1)
    destination: str = Field(min_length=1)


def filesystem_routes(door: Door) -> list[BoxRoute]:
    handlers = {
        "Stat": stat_path, "ListDir": list_dir, "MakeDir": make_dir, "Move": move, "Remove": remove,
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
    wanted = checked(
        RenameRequest,
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


async def _asked(box: InBox, model: type[Any]) -> Any:
    check_user(box.http)
    return parsed(model, await box.asked.body())


def entry_info(entry: FileEntry) -> dict[str, Any]:
    """A link has type and mode of what it leads to, as at e2b, and its own permissions. One that
    leads nowhere stays a link: the SDK leaves out of lists what has no type."""
    if entry.type == "symlink":
        return _link_info(entry)
    return _info(entry, entry.type, int(entry.mode, 8))


def _link_info(link: FileEntry) -> dict[str, Any]:
    end = link.leads_to
    if end is None or end.type == "symlink":
        said = posixpath.join(posixpath.dirname(link.path), link.target or "")
        info = _info(link, "symlink", int(link.mode, 8))
        info["symlinkTarget"] = posixpath.normpath(said)
    else:
        info = {**_info(link, end.type, int(end.mode, 8)), "symlinkTarget": end.path}
    own = stat.filemode(int(link.mode, 8) | stat.S_IFLNK)
    return {**info, "permissions": f"L{own[1:]}"}


def _info(entry: FileEntry, kind: str, mode: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": entry.name,
        "type": _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
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
