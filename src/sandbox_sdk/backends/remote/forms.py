"""What travels other than as JSON: files in forms, files in answers, input of commands."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator
from email.message import Message
from typing import Literal
from urllib.parse import unquote

import httpx

from sandbox_sdk.protocol.models import DownloadInfo

STDIN_PIECE = 256 * 1024
"""Six times as long in JSON at worst: well within what a body may have."""


class UploadForm:
    """A form with a file in it, whose chunks can be had once."""

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


def stdin_pieces(data: bytes) -> list[bytes]:
    """At least one, however little there is."""
    return [data[at : at + STDIN_PIECE] for at in range(0, len(data) or 1, STDIN_PIECE)]


def stdin_text(piece: bytes) -> tuple[str, Literal["utf-8", "base64"]]:
    """How a piece of input travels: as it is where that is possible."""
    try:
        return piece.decode(), "utf-8"
    except UnicodeDecodeError:
        return b64encode(piece).decode(), "base64"


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
