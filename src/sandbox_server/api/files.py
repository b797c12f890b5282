"""/upload_file, /download_file and /artifact."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header, Query
from fastapi.responses import StreamingResponse
from pydantic_core import from_json
from starlette.responses import Response

from sandbox_sdk.protocol import errors, models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidPath, InvalidRequest
from sandbox_sdk.protocol.models import Request as RequestModel
from sandbox_server.api import examples
from sandbox_server.api.multipart import MAX_FIELD, UploadForm, read_upload
from sandbox_server.api.openapi import answer, error_answers
from sandbox_server.api.operations import ALWAYS, WITH_BODY, parse_query
from sandbox_server.api.route import Asked, Handler, KeyedRoute, Served, bind_target
from sandbox_server.api.sse import HoldingResponse

UPLOAD = "/upload_file"
_UPLOAD_FIELDS: dict[str, Any] = {
    "thread_id": {"type": "string", "pattern": models.THREAD_ID, "examples": ["conv-42"]},
    "session_id": {"type": "string", "maxLength": 128},
    "path": {"type": "string", "examples": ["script.py"]},
    "metadata": {
        "type": "string",
        "maxLength": MAX_FIELD,
        "description": "A JSON object of names and values in printable ASCII, kept with the file as"
        " extended attributes `user.e2b.*`. What a file of this name had before goes.",
        "examples": ['{"author": "ada"}'],
    },
    "file": {
        "type": "string",
        "format": "binary",
        "description": "Comes last where it can: it is then stored as it comes.",
    },
}
_UPLOAD_SCHEMA = {"type": "object", "required": ["file"], "properties": _UPLOAD_FIELDS}
UPLOAD_FORM = {"multipart/form-data": {"schema": _UPLOAD_SCHEMA}}


def upload_route(served: Served) -> KeyedRoute:
    return KeyedRoute(
        UPLOAD,
        upload_file,
        served=served,
        described=_upload,
        methods=["POST"],
        response_model=models.UploadResult,
        summary="Store a file",
        operation_id="upload_file",
        tags=["sandboxes"],
        openapi_extra={"requestBody": {"required": True, "content": UPLOAD_FORM}},
        responses={
            200: answer("Stored.", examples.UPLOAD_RESULT),
            **error_answers(
                *ALWAYS, *WITH_BODY, *op.OF_SESSION,
                errors.InvalidPath, errors.DiskFull, errors.Capacity,
            ),
        },
    )  # fmt: skip


def download_route(served: Served) -> KeyedRoute:
    return _bytes_route(
        served,
        "/download_file",
        download_file,
        described=_download,
        summary="Read a file, or a folder as a tar",
        tags=["sandboxes"],
        responses={
            **_bytes_answers(
                "The bytes; the ETag is the file's sha256 where it is known.",
                "The file is still the one named in If-None-Match.",
                types=("application/octet-stream", "application/x-tar"),
            ),
            **error_answers(*ALWAYS, *op.OF_SESSION, *op.OF_FILE, errors.FileTooLarge),
        },
    )


def artifact_route(served: Served) -> KeyedRoute:
    return _bytes_route(
        served,
        "/artifact",
        download_artifact,
        described=_download_artifact,
        summary="Read an artifact",
        tags=["artifacts"],
        responses={
            **_bytes_answers(
                "The bytes; the ETag is their sha256.",
                "The artifact is the one named in If-None-Match.",
            ),
            **error_answers(*ALWAYS, errors.NotFound),
        },
    )


def _bytes_route(served: Served, path: str, handler: Handler, **more: Any) -> KeyedRoute:
    return KeyedRoute(
        path,
        handler,
        served=served,
        scope="read",
        response_model=None,
        response_class=StreamingResponse,
        operation_id=handler.__name__,
        **more,
    )


def _bytes_answers(
    told: str, unchanged: str, *, types: Sequence[str] = ("application/octet-stream",)
) -> dict[int | str, dict[str, Any]]:
    data = {"schema": {"type": "string", "format": "binary"}}
    return {
        200: {"description": told, "content": dict.fromkeys(types, data)},
        304: {"description": unchanged},
    }


class _UploadQuery(RequestModel):
    thread_id: str | None = None
    session_id: str | None = None
    path: str | None = None


async def upload_file(asked: Asked) -> Response:
    query = parse_query(_UploadQuery, asked.http)
    form = await read_upload(asked.http, query=dict(query), limits=asked.limits)
    with contextlib.closing(form):
        return await _stored(asked, query, form)


async def _stored(asked: Asked, query: _UploadQuery, form: UploadForm) -> Response:
    fields: dict[str, Any] = {**_merged(form, dict(query))}
    fields["path"] = fields.get("path") or _own_name(form)
    if "metadata" in fields:
        fields["metadata"] = _json_object(fields["metadata"])
    request = models.checked(models.UploadRequest, **fields)
    bind_target(request)
    stored = await asked.sandboxes.upload(request, form.chunks)
    return Response(stored.model_dump_json(), media_type="application/json")


async def download_file(asked: Asked) -> Response:
    request = parse_query(models.DownloadRequest, asked.http)
    bind_target(request)
    return await downloaded(asked, request)


async def download_artifact(asked: Asked) -> Response:
    return await downloaded(asked, parse_query(models.ArtifactTarget, asked.http))


async def downloaded(
    asked: Asked, request: models.DownloadRequest | models.ArtifactTarget, *, folders: bool = True
) -> Response:
    """The bytes that a request is about, as they come. Without folders: raises InvalidPath."""
    async with AsyncExitStack() as stack:
        download = await stack.enter_async_context(asked.sandboxes.download(request))
        if download.info.type == "directory" and not folders:
            raise InvalidPath(f"{download.info.path} is a directory, not a file")
        headers = _headers(download.info)
        if _matches(asked.http.headers.get("if-none-match"), headers.get("ETag")):
            return Response(status_code=304, headers={"ETag": headers["ETag"]})
        # Read the first chunk now: errors up to here still get their own HTTP status.
        first = await anext(download.chunks, b"")
        return HoldingResponse(
            _with_first(first, download.chunks),
            held=stack.pop_all(),
            headers=headers,
            media_type=_media_type(download.info),
        )


def _merged(form: UploadForm, query: dict[str, str | None]) -> dict[str, str]:
    given = {name: value for name, value in query.items() if value is not None}
    if twice := sorted(given.keys() & form.fields.keys()):
        raise InvalidRequest(f"{twice[0]} is both in the form and in the query; give it once")
    return {**given, **form.fields}


def _json_object(text: str) -> dict[str, Any]:
    """Raises InvalidRequest."""
    try:
        found = from_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest('field metadata of the form is not a JSON object, as {"name": "x"}')
    return found


def _own_name(form: UploadForm) -> str:
    name = PurePosixPath(form.filename or "").name
    if name in ("", ".."):
        raise InvalidPath("the file part has no filename; set `path` to where it is to be stored")
    return name


def _headers(info: models.DownloadInfo) -> dict[str, str]:
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


def _media_type(info: models.DownloadInfo) -> str:
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


_Thread = Annotated[
    models.ThreadId | None,
    Query(description="The conversation, chosen by the caller.", examples=["conv-42"]),
]
_Session = Annotated[
    str | None,
    Query(max_length=128, description="One life of a thread's sandbox, named by the server."),
]


async def _upload(
    thread_id: _Thread = None,
    session_id: _Session = None,
    path: Annotated[
        str | None, Query(description="Where to; the file's own name if left out.")
    ] = None,
) -> Any:
    """Store a file. It appears when it is whole, or not at all. `thread_id` or `session_id` and
    `path` may be given in the query instead of the form."""


_IfNoneMatch = Annotated[str | None, Header(description="An ETag had before.")]


async def _download(
    path: Annotated[str, Query(min_length=1, examples=["out.csv"])],
    thread_id: _Thread = None,
    session_id: _Session = None,
    if_none_match: _IfNoneMatch = None,
) -> Any:
    """The bytes of a file as they are, or a folder as a tar."""


async def _download_artifact(
    artifact_id: Annotated[
        str, Query(min_length=1, max_length=200, examples=["5b1f0c2a9d3e4f6a@worker-1"])
    ],
    if_none_match: _IfNoneMatch = None,
) -> Any:
    """The bytes of an artifact, also after the end of its session."""
