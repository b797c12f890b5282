"""The Connect protocol as e2b's SDK uses it: JSON messages, those of a stream in envelopes."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from sandbox_sdk.protocol.errors import FileTooLarge, InvalidRequest
from sandbox_sdk.protocol.models import invalid_fields

STREAM = "application/connect+json"
_HEAD = struct.Struct(">BI")
_END = 2
_COMPRESSED = 1


class Message(BaseModel):
    """A message of the SDK's. Fields that a later version of it sends are passed over."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )


_Parsed = TypeVar("_Parsed", bound=Message)


def parsed(model: type[_Parsed], data: bytes) -> _Parsed:
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
