"""Streaming parser for upload forms.

A file whose sandbox and path are known before it comes is passed on as it comes. Where the fields
come after it, it waits in a temporary file for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from sandbox_sdk.protocol.errors import FileTooLarge, InvalidRequest
from sandbox_server.api.errors import ClientGone
from sandbox_server.api.headers import announced_bytes
from sandbox_server.api.limits import ApiLimits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELD = 8192
FIELDS = ("thread_id", "session_id", "path", "metadata")
FILE = "file"
_IN_MEMORY = 1 << 20
"""Of a file that waits for its fields; more is on disk."""
_PIECE = 256 * 1024


@dataclass(frozen=True)
class Part:
    name: str
    filename: str | None


class _End(Enum):
    PART = "part"
    FORM = "form"


class FormReader:
    """Reads the parts of a form one by one."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        """Raises InvalidRequest."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidRequest("send the file as multipart/form-data, in a field named `file`")
        self._body = body
        self._tokens: deque[Part | bytes | _End] = deque()
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._data: list[bytes] = []
        try:
            self._parser = MultipartParser(options[b"boundary"], self._callbacks())
        except FormParserError:
            raise InvalidRequest("the form's boundary is too long") from None

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_more,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._form_end,
        }

    async def next_part(self) -> Part | None:
        """The next part, or None at the end of the form. Raises InvalidRequest."""
        while not isinstance(token := await self._token(), Part):
            if token is _End.FORM:
                return None
        return token

    async def data(self) -> AsyncIterator[bytes]:
        """The bytes of the current part. Raises InvalidRequest if the form ends too soon."""
        while isinstance(token := await self._token(), bytes):
            yield token

    async def _token(self) -> Part | bytes | _End:
        while not self._tokens:
            try:
                chunk = await anext(self._body)
            except StopAsyncIteration:
                raise InvalidRequest(
                    "the form ends before its last boundary; send it again"
                ) from None
            except ClientDisconnect:
                raise ClientGone("the client disconnected") from None
            self._parse(chunk)
        return self._tokens.popleft()

    def _parse(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise InvalidRequest("the body is not a well-formed multipart form") from None
        self._flush()

    def _flush(self) -> None:
        if self._data:
            self._tokens.append(b"".join(self._data))
            self._data.clear()

    def _part_begin(self) -> None:
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_more(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name, filename = options.get(b"name", b""), options.get(b"filename")
        self._tokens.append(Part(_text(name), None if filename is None else _text(filename)))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def _part_end(self) -> None:
        self._flush()
        self._tokens.append(_End.PART)

    def _form_end(self) -> None:
        self._tokens.append(_End.FORM)


@dataclass(frozen=True)
class UploadForm:
    """The fields of an upload, and its file as a stream. Close it."""

    fields: dict[str, str]
    filename: str | None
    chunks: AsyncIterator[bytes]
    close: Callable[[], None] = lambda: None


async def read_upload(
    request: Request, *, query: Mapping[str, str | None], limits: ApiLimits
) -> UploadForm:
    """Read up to the start of the file; iterating over the chunks reads the rest. If the fields
    before the file do not say where it goes, read all of the form.

    query: the fields that are given there. Raises InvalidRequest; FileTooLarge and ClientGone,
    also from the chunks: the file is then incomplete.
    """
    reader = FormReader(request.headers.get("content-type", ""), aiter(request.stream()))
    given = {name: value for name, value in query.items() if value is not None}
    fields: dict[str, str] = {}
    with contextlib.ExitStack() as unless_done:
        held: _HeldFile | None = None
        while part := await reader.next_part():
            if part.name == FILE and held is None:
                chunks = _file(reader, part, {**given, **fields}, request, limits)
                if _says_where(given.keys() | fields.keys()):
                    return UploadForm(fields, part.filename, _last(chunks, reader))
                held = _HeldFile(part.filename)
                unless_done.callback(held.close)
                await held.take(chunks)
            elif part.name in FIELDS and part.name not in fields:
                fields[part.name] = await _field(reader, part.name)
            else:
                raise _surplus(part)
        if held is None:
            raise InvalidRequest("the form has no field named `file`; send the file in one")
        unless_done.pop_all()
        return UploadForm(fields, held.filename, held.chunks(), held.close)


def _says_where(names: Collection[str]) -> bool:
    return "path" in names and ("thread_id" in names or "session_id" in names)


def _surplus(part: Part) -> InvalidRequest:
    wrong = "is there twice" if part.name in (FILE, *FIELDS) else "is not known"
    return InvalidRequest(
        f"field {part.name[:100]!r} of the form {wrong}: it may have"
        f" {', '.join(FIELDS)} and {FILE}, each once"
    )


class _HeldFile:
    """A file that waits for the fields behind it. Close it."""

    def __init__(self, filename: str | None) -> None:
        self.filename = filename
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - see close()

    def close(self) -> None:
        self._file.close()

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        async for chunk in chunks:
            await asyncio.to_thread(self._file.write, chunk)

    async def chunks(self) -> AsyncIterator[bytes]:
        self._file.seek(0)
        while chunk := await asyncio.to_thread(self._file.read, _PIECE):
            yield chunk


async def _field(reader: FormReader, name: str) -> str:
    value = bytearray()
    async for data in reader.data():
        value += data
        if len(value) > MAX_FIELD:
            raise InvalidRequest(f"field {name} of the form has more than {MAX_FIELD} bytes")
    return _text(bytes(value))


async def _file(
    reader: FormReader,
    part: Part,
    fields: Mapping[str, str],
    request: Request,
    limits: ApiLimits,
) -> AsyncIterator[bytes]:
    """The bytes of the file. Raises FileTooLarge, also for what is announced: here and not in
    BodyLimit, which does not know the name of the file."""
    name = fields.get("path") or part.filename or "the file"
    too_large = FileTooLarge.upload(name, limit_bytes=limits.upload_bytes)
    if announced_bytes(request.scope) > limits.upload_bytes + limits.form_bytes:
        raise too_large
    size = 0
    async for data in reader.data():
        size += len(data)
        if size > limits.upload_bytes:
            raise too_large
        yield data


async def _last(chunks: AsyncIterator[bytes], reader: FormReader) -> AsyncIterator[bytes]:
    """Chunks of a file that is passed on as it comes, so nothing may come after it."""
    async for chunk in chunks:
        yield chunk
    if (part := await reader.next_part()) is not None:
        raise _surplus(part)  # Which discards the file.


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("names and fields of the form must be UTF-8") from None
