"""Bodies that are not JSON: uploads as forms, and downloads."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator
from email.message import Message
from urllib.parse import unquote

import httpx

from sandbox_sdk.protocol.models import DownloadInfo


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
