"""/files: reading and writing whole files, with a token or a signed URL."""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import AsyncIterator
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from sandbox_sdk.protocol.errors import FileTooLarge, InvalidPath, InvalidRequest, SandboxError
from sandbox_sdk.protocol.models import DownloadRequest, checked
from sandbox_server.api.e2b.errors import file_error
from sandbox_server.api.e2b.messages import json_answer
from sandbox_server.api.e2b.routes import (
    PREFIX,
    BoxHandler,
    BoxRoute,
    Door,
    InBox,
    check_user,
    full_path,
)
from sandbox_server.api.e2b.tokens import Signed
from sandbox_server.api.files import downloaded
from sandbox_server.api.headers import is_form
from sandbox_server.api.multipart import FILE, FormReader

FILES = "/files"
UPLOADS = frozenset({FILES, PREFIX + FILES})
_GZIP = 31
"""For zlib: with the header of gzip."""
_PIECE = 1 << 20
_METADATA = "x-metadata-"


def file_routes(door: Door) -> list[BoxRoute]:
    """At our prefix, and without it: the SDK drops it from the URLs that it signs."""
    return [
        FilesRoute(door, method, path, handler)
        for path in sorted(UPLOADS)
        for method, handler in (("GET", read), ("POST", write))
    ]


class FilesRoute(BoxRoute):
    def __init__(self, door: Door, method: str, path: str, handler: BoxHandler) -> None:
        super().__init__(door, method, path, handler, prefix="")
        self._operation: Literal["read", "write"] = "read" if method == "GET" else "write"

    def _refusal(self, error: SandboxError, request_id: str) -> Response:
        return file_error(error, request_id)

    async def _answer(self, http: Request) -> Response:
        query = http.query_params
        if not query.get("signature"):
            return await super()._answer(http)
        signed = Signed(
            path=query.get("path", ""),
            operation=self._operation,
            user=query.get("username", ""),
            signature=query["signature"],
            expiration=query.get("signature_expiration", ""),
        )
        found = await self._door.signed.find(signed)
        return await self._handler(self._in_box(http, found.session_id, found.holder))


async def read(box: InBox) -> Response:
    check_user(box.http)
    path = full_path(box.http.query_params.get("path"))
    request = checked(DownloadRequest, session_id=box.session_id, path=path)
    return await downloaded(box.asked, request, folders=False)


async def write(box: InBox) -> Response:
    check_user(box.http)
    headers = box.http.headers
    path = box.http.query_params.get("path")
    if is_form(box.http.scope):
        return json_answer([each async for each in _of_form(box, path)])
    if not path:
        raise InvalidPath("say where the file goes, with `path`")
    chunks = _bounded(box, path, _decoded(box.http, headers.get("content-encoding", "identity")))
    return json_answer([await _stored(box, path, chunks)])


async def _of_form(box: InBox, path: str | None) -> AsyncIterator[dict[str, Any]]:
    """Each file of a form. One goes where `path` says, several where their names do."""
    reader = FormReader(box.http.headers.get("content-type", ""), aiter(box.http.stream()))
    while part := await reader.next_part():
        if part.name != FILE:
            continue
        to = path or part.filename
        if not to:
            raise InvalidPath("a file of the form has no name; set `path` to where it goes")
        yield await _stored(box, to, _bounded(box, to, reader.data()))


async def _stored(box: InBox, path: str, chunks: AsyncIterator[bytes]) -> dict[str, Any]:
    metadata = {
        name.removeprefix(_METADATA): value
        for name, value in box.http.headers.items()
        if name.startswith(_METADATA)
    }
    stored = await box.sandboxes.upload_file(box.target, full_path(path), chunks, metadata=metadata)
    info = {"name": posixpath.basename(stored.path), "type": "file", "path": stored.path}
    return {**info, "metadata": metadata} if metadata else info


async def _bounded(box: InBox, path: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Raises FileTooLarge."""
    size, limit = 0, box.asked.limits.upload_bytes
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise FileTooLarge.upload(path, limit_bytes=limit)
        yield chunk


async def _decoded(http: Request, encoding: str) -> AsyncIterator[bytes]:
    """Raises InvalidRequest."""
    if encoding == "identity":
        async for chunk in http.stream():
            yield chunk
        return
    if encoding != "gzip":
        raise InvalidRequest(f"Content-Encoding {encoding[:40]!r} is neither gzip nor identity")
    inflating = zlib.decompressobj(_GZIP)
    try:
        async for chunk in http.stream():
            while chunk:
                yield inflating.decompress(chunk, _PIECE)
                chunk = inflating.unconsumed_tail
        yield inflating.flush()
    except zlib.error:
        raise InvalidRequest("the body is not valid gzip") from None
    if not inflating.eof:
        raise InvalidRequest("the body ends before its gzip does")
