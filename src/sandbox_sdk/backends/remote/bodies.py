"""Bodies that are more than a model in JSON: uploads as forms, downloads, and long listings."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterable, AsyncIterator
from email.message import Message
from urllib.parse import unquote

import httpx

from sandbox_sdk.protocol.models import DownloadInfo, FileEntry, ListResult

_SLICE = 200
_START = re.compile(r'"entries"\s*:\s*\[\s*')
"""Matches nothing else: inside a string the quotes would be escaped."""
_NEXT = re.compile(r"\s*,\s*")
_END = re.compile(r"\s*\]")


class UploadForm:
    """A form with a file, whose chunks can be read once."""

    def __init__(self, fields: dict[str, str], chunks: AsyncIterable[bytes]) -> None:
        self._fields = fields
        self._chunks = chunks
        self._boundary = os.urandom(16).hex()

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self._boundary}"

    async def content(self) -> AsyncIterator[bytes]:
        part = f"--{self._boundary}\r\ncontent-disposition: form-data; name="
        for name, value in self._fields.items():
            yield f'{part}"{name}"\r\n\r\n{value}\r\n'.encode()
        yield (
            f'{part}"file"; filename="upload"\r\ncontent-type: application/octet-stream\r\n\r\n'
        ).encode()
        async for chunk in self._chunks:
            yield chunk
        yield f"\r\n--{self._boundary}--\r\n".encode()


def download_info(path: str, headers: httpx.Headers) -> DownloadInfo:
    disposition = Message()
    disposition["content-disposition"] = headers.get("content-disposition", "")
    folder = headers.get("content-type", "").startswith("application/x-tar")
    name = disposition.get_filename() or path.rstrip("/").rpartition("/")[2]
    return DownloadInfo(
        filename=name.removesuffix(".tar") if folder else name,
        path=unquote(headers.get("x-sandbox-path", path)),
        type="directory" if folder else "file",
        size=None if folder else int(headers.get("content-length", 0)),
        sha256=headers.get("etag", "").strip('"') or None,
        modified_at=headers.get("x-sandbox-modified-at", "1970-01-01T00:00:00Z"),
    )


async def read_listing(body: bytes) -> ListResult:
    """Parsed in slices, so that a coordinator can serve others in between. Raises ValueError."""
    text = body.decode()
    start = _START.search(text)
    if start is None:
        return ListResult.model_validate_json(body)
    decode = json.JSONDecoder().raw_decode
    entries: list[FileEntry] = []
    place = start.end()
    while _END.match(text, place) is None:
        found, place = decode(text, place)
        entries.append(FileEntry.model_validate(found))
        if after := _NEXT.match(text, place):
            place = after.end()
        if len(entries) % _SLICE == 0:
            await asyncio.sleep(0)
    rest = json.loads(f"{text[: start.end()]}{text[place:]}")
    return ListResult(**{**rest, "entries": entries})
