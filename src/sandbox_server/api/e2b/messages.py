"""The Connect protocol as e2b's SDK uses it: JSON messages, and streams of them in envelopes."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from sandbox_sdk.protocol.errors import FileTooLarge, Internal, InvalidRequest, SandboxError
from sandbox_sdk.protocol.models import invalid_fields
from sandbox_server.api.e2b.errors import DeadlineExceeded, is_for_http, stream_error
from sandbox_server.api.e2b.routes import InBox
from sandbox_server.api.errors import log_failure
from sandbox_server.api.sse import HEADERS, Feed, HoldingResponse, Silence

STREAM = "application/connect+json"
_KEEP_ALIVE_S = 90.0
"""Where the SDK does not say how often it wants to hear something."""
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_HEAD = struct.Struct(">BI")
_END = 2
_COMPRESSED = 1


class Message(BaseModel):
    """A message of the SDK's. Fields that a later version of it sends are passed over."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )


Parsed = TypeVar("Parsed", bound=Message)


def parsed(model: type[Parsed], data: bytes) -> Parsed:
    """Raises InvalidRequest."""
    try:
        return model.model_validate_json(data or b"{}")
    except ValidationError as error:
        raise invalid_fields(error.errors(include_url=False)) from None


def envelope(message: dict[str, Any]) -> bytes:
    return _enveloped(0, message)


def end_of_stream(error: dict[str, str] | None = None) -> bytes:
    """The last envelope."""
    return _enveloped(_END, {} if error is None else {"error": error})


def _enveloped(flags: int, message: dict[str, Any]) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(flags, len(data)) + data


def one_message(body: bytes) -> bytes:
    """The message of a stream that has one. Raises InvalidRequest."""
    if len(body) < _HEAD.size:
        raise InvalidRequest("the body is no envelope: it has less than 5 bytes")
    flags, size = _HEAD.unpack_from(body)
    _check_flags(flags)
    if len(body) != _HEAD.size + size:
        raise InvalidRequest("the body is not one envelope: its length is not the one it says")
    return body[_HEAD.size :]


async def messages(body: AsyncIterator[bytes], *, most_bytes: int) -> AsyncIterator[bytes]:
    """The messages of a stream as they come. Raises InvalidRequest, FileTooLarge."""
    held = bytearray()
    async for piece in body:
        held += piece
        while len(held) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(held)
            if flags & _END:
                return
            _check_flags(flags)
            if size > most_bytes:
                raise FileTooLarge(f"a message of the stream has more than {most_bytes} bytes")
            if len(held) < _HEAD.size + size:
                break
            message = bytes(held[_HEAD.size : _HEAD.size + size])
            del held[: _HEAD.size + size]
            yield message
    if held:
        raise InvalidRequest("the stream ends within an envelope")


def _check_flags(flags: int) -> None:
    if flags & _COMPRESSED:
        raise InvalidRequest("the envelope is compressed; send it as it is")
    if flags:
        raise InvalidRequest(f"the envelope has unknown flags: {flags}")


ToMessages = Callable[[Any], Iterable[dict[str, Any]]]


def json_answer(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(body, separators=(",", ":"))
    return Response(content, status, headers, media_type="application/json")


async def message_stream(
    box: InBox,
    events: AsyncIterator[Any],
    to_messages: ToMessages,
    *,
    keep_alive: dict[str, Any] | None = None,
    within_s: float | None = None,
) -> Response:
    """The events as messages. A sandbox that is gone and a wrong user fail with an HTTP status,
    everything else in the last envelope. within_s: how long the stream may take."""
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(Feed(events))
        stream = _Stream(box, feed, to_messages, keep_alive, within_s)
        await stream.begin()
        return HoldingResponse(
            stream.envelopes(), held=stack.pop_all(), headers=HEADERS, media_type=STREAM
        )
    raise AssertionError("unreachable")


class _Stream:
    def __init__(
        self,
        box: InBox,
        feed: Feed,
        to_messages: ToMessages,
        keep_alive: dict[str, Any] | None,
        within_s: float | None,
    ) -> None:
        self._request_id = box.asked.request_id
        self._feed = feed
        self._to_messages = to_messages
        self._keep_alive = keep_alive
        self._every_s = _interval_s(box)
        self._until = None if within_s is None else time.monotonic() + within_s
        self._first: Any = None
        self._failed: SandboxError | None = None

    async def begin(self) -> None:
        """Wait for the first event. Raises what an HTTP status says."""
        try:
            self._first = await self._next()
        except SandboxError as error:
            if is_for_http(error):
                raise
            self._failed = error

    async def envelopes(self) -> AsyncIterator[bytes]:
        try:
            if self._failed is not None:
                raise self._failed
            event = self._first
            while event is not None:
                if isinstance(event, Silence):
                    yield envelope(self._keep_alive or {})
                else:
                    for message in self._to_messages(event):
                        yield envelope(message)
                event = await self._next()
            yield end_of_stream()
        except Exception as error:
            yield end_of_stream(stream_error(self._known(error)))

    async def _next(self) -> Any:
        """Raises DeadlineExceeded."""
        if self._until is None:
            return await self._feed.next(patience_s=self._every_s if self._keep_alive else None)
        left_s = self._until - time.monotonic()
        found = await self._feed.next(patience_s=max(min(left_s, self._every_s), 0))
        if isinstance(found, Silence) and time.monotonic() >= self._until:
            raise DeadlineExceeded("the time that was given for this stream is over")
        return found

    def _known(self, error: Exception) -> SandboxError:
        if isinstance(error, SandboxError):
            return error
        log_failure(error, request_id=self._request_id)
        return Internal(f"internal error; report request_id {self._request_id}")


def timeout_s(box: InBox) -> float | None:
    """How long the SDK gives a call; None for as long as it takes. Raises InvalidRequest."""
    given = box.http.headers.get("connect-timeout-ms", "0")
    if not _NUMBER.fullmatch(given):
        raise InvalidRequest("Connect-Timeout-Ms is not a number of at most 10 digits")
    return int(given) / 1000 or None


def _interval_s(box: InBox) -> float:
    """Seconds between signs of life."""
    given = box.http.headers.get("keepalive-ping-interval", "")
    if not _NUMBER.fullmatch(given):
        return _KEEP_ALIVE_S
    return min(max(int(given), 1), _KEEP_ALIVE_S)
