"""upload_file, download_file and list_files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from sandbox_sdk.protocol.errors import InvalidPath, InvalidRequest
from sandbox_sdk.protocol.models import WORKSPACE, DownloadInfo, ListResult, UploadResult
from sandbox_server.api.dependencies import Asked, QueryTarget, SessionIdQuery, ThreadIdQuery
from sandbox_server.api.errors import make_target
from sandbox_server.api.forms import UploadForm, read_upload
from sandbox_server.api.holding import HoldingResponse

_SLICE = 200
"""How many entries are told before others get their turn."""


async def upload_file(
    request: Request,
    asked: Asked,
    thread_id: ThreadIdQuery = None,
    session_id: SessionIdQuery = None,
    path: Annotated[
        str | None, Query(description="Where to; the file's own name if left out.")
    ] = None,
) -> UploadResult:
    """Store a file. It appears when it is whole, or not at all. In the form, `thread_id` or
    `session_id` and `path` come before `file`; they may be given in the query instead."""
    form = await read_upload(request, limit=asked.limits.upload_bytes)
    fields = _merged(form, {"thread_id": thread_id, "session_id": session_id, "path": path})
    target = make_target(thread_id=fields.get("thread_id"), session_id=fields.get("session_id"))
    return await asked.sandboxes.upload_file(
        target, fields.get("path") or _own_name(form), form.chunks, tenant=asked.tenant
    )


async def download_file(
    asked: Asked,
    target: QueryTarget,
    path: Annotated[str, Query(min_length=1, examples=["out.csv"])],
    if_none_match: Annotated[str | None, Header(description="An ETag had before.")] = None,
) -> Response:
    """The bytes of a file as they are, or a folder as a tar."""
    async with AsyncExitStack() as stack:
        download = await stack.enter_async_context(
            asked.sandboxes.download_file(target, path, tenant=asked.tenant)
        )
        headers = _headers(download.info)
        if _matches(if_none_match, headers.get("ETag")):
            return Response(status_code=304, headers={"ETag": headers["ETag"]})
        # What fails up to the first byte still has a status of its own.
        first = await anext(download.chunks, b"")
        return HoldingResponse(
            _with_first(first, download.chunks),
            held=stack.pop_all(),
            headers=headers,
            media_type=_media_type(download.info),
        )


async def list_files(
    asked: Asked,
    target: QueryTarget,
    path: Annotated[str, Query(min_length=1)] = WORKSPACE,
    recursive: Annotated[bool, Query(description="Folders in folders too.")] = False,
    limit: Annotated[int, Query(ge=1, le=100_000, description="The most entries.")] = 1000,
) -> Response:
    """What is in a folder. The session is made where there is none."""
    found = await asked.sandboxes.list_files(
        target, path=path, recursive=recursive, limit=limit, tenant=asked.tenant
    )
    return StreamingResponse(_listing(found), media_type="application/json")


async def _listing(found: ListResult) -> AsyncIterator[str]:
    """As JSON, some at a time: all of it at once would hold up everybody."""
    rest = found.model_copy(update={"entries": []}).model_dump_json()
    start, end = rest.split('"entries":[]')
    yield f'{start}"entries":['
    for number in range(0, len(found.entries), _SLICE):
        some = found.entries[number : number + _SLICE]
        text = ",".join(entry.model_dump_json() for entry in some)
        yield f",{text}" if number else text
        await asyncio.sleep(0)
    yield f"]{end}"


def _merged(form: UploadForm, query: dict[str, str | None]) -> dict[str, str]:
    given = {name: value for name, value in query.items() if value is not None}
    if twice := sorted(given.keys() & form.fields.keys()):
        raise InvalidRequest(f"{twice[0]} is both in the form and in the query; give it once")
    return {**given, **form.fields}


def _own_name(form: UploadForm) -> str:
    name = PurePosixPath(form.filename or "").name
    if name in ("", ".."):
        raise InvalidPath("the file has no name of its own; say where to store it with `path`")
    return name


def _headers(info: DownloadInfo) -> dict[str, str]:
    name = (info.filename or "workspace") + (".tar" if info.type == "directory" else "")
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name)
    extended = quote(name, safe="", errors="replace")
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{extended}",
        "X-Content-Type-Options": "nosniff",
        "X-Sandbox-Path": quote(info.path, errors="replace"),
        "X-Sandbox-Modified-At": info.modified_at.isoformat(),
    }
    if info.type == "file" and info.size is not None:
        headers["Content-Length"] = str(info.size)
    if info.sha256:
        headers["ETag"] = f'"{info.sha256}"'
    return headers


def _media_type(info: DownloadInfo) -> str:
    return "application/octet-stream" if info.type == "file" else "application/x-tar"


def _matches(if_none_match: str | None, etag: str | None) -> bool:
    if not if_none_match or not etag:
        return False
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in known or "*" in known


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
