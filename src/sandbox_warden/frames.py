"""Frames: the messages between a server and a warden, over any byte stream.

A frame is a 9-byte header (payload length, kind, channel) and a payload. A channel is one request
and everything that belongs to it; the requester picks its number. Both ends use this module, and
both limit what they accept: a frame that is too long ends the stream. An unknown kind comes from a
later version and is ignored.
"""

import json
import struct
from typing import Any, Dict, Iterator, Tuple, Union

PROTOCOL_VERSION = 1
OLDEST_VERSION = 1
"""Both ends use the highest version that both know. See docs/warden-protocol.md."""

HEADER = struct.Struct("!IBI")
OFFSET = struct.Struct("!Q")
MAX_PAYLOAD = 1 << 20
MAX_RECEIVED = 2 << 20
"""What a server takes in one frame: earlier wardens send files of up to 1 MiB behind others."""
CHUNK = 64 * 1024
WINDOW = 1 << 20
"""How much a channel may send before its reader grants more with CREDIT."""

# Requests, answered on their channel by one REPLY or ERROR.
HELLO, RUN, ATTACH, SIGNAL, PUT, GET, LIST, STAT, USAGE, STATE, _END, PING, STDIN, RENAME = range(
    1, 15
)
CHANGES, CODE, CONTEXTS, RESIZE, PACK, UNPACK, DIAL, ACCEPT = range(15, 23)
MKDIR, REMOVE, WATCH = range(23, 26)
LISTEN, PAUSE = 29, 30
# Parts of a request, in either direction.
DATA, EOF, CREDIT, CANCEL = range(32, 36)
# Answers.
REPLY, ERROR, STARTED, STDOUT, STDERR, GAP, RESULT = range(64, 71)

REQUEST_KINDS = range(1, 32)
"""Range for requests, including those of later versions."""
KINDS = frozenset([*range(1, 26), LISTEN, PAUSE, *range(32, 36), *range(64, 71)])

Frame = Tuple[int, int, bytes]
"""Kind, channel, payload."""
Payload = Union[bytes, memoryview]


MESSAGE_LENGTH = 1000
"""Most characters of an error message, which may quote a path of any length."""


class FrameError(Exception):
    """Invalid data from the other end. The stream cannot be used any further."""


class TooLong(Exception):
    """A message does not fit into a frame."""

    def __init__(self, size: int) -> None:
        super().__init__("%d bytes, at most %d" % (size, MAX_PAYLOAD))
        self.size = size


def encode(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """Raises TooLong, as all that make frames: the other end would close the stream."""
    return header(kind, channel, payload) + payload


def header(kind: int, channel: int, payload: Payload) -> bytes:
    """Of a frame whose payload is sent by itself."""
    return _header(kind, channel, len(payload))


def _header(kind: int, channel: int, size: int) -> bytes:
    if size > MAX_PAYLOAD:
        raise TooLong(size)
    return HEADER.pack(size, kind, channel)


def encode_json(kind: int, channel: int, body: Dict[str, Any]) -> bytes:
    """File names that are not UTF-8 are sent as lone surrogates."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return encode(kind, channel, text.encode("utf-8", "surrogatepass"))


def encode_error(channel: int, code: str, message: str) -> bytes:
    return encode_json(ERROR, channel, {"code": code, "message": message[:MESSAGE_LENGTH]})


def encode_at(kind: int, channel: int, offset: int, data: bytes) -> bytes:
    """A frame of output or input bytes, prefixed with their absolute offset."""
    return _header(kind, channel, OFFSET.size + len(data)) + OFFSET.pack(offset) + data


def decode_json(payload: bytes) -> Dict[str, Any]:
    """The object in a payload. Raises FrameError for anything that is not a JSON object."""
    try:
        body = json.loads(payload or b"{}")
    except (ValueError, RecursionError) as exc:
        raise FrameError("payload is not JSON: %s" % exc) from None
    if not isinstance(body, dict):
        raise FrameError("payload is not a JSON object")
    return body


def decode_at(payload: bytes) -> Tuple[int, bytes]:
    """The inverse of encode_at. Raises FrameError if the offset is missing."""
    if len(payload) < OFFSET.size:
        raise FrameError("payload of %d bytes is too short for an 8-byte offset" % len(payload))
    (offset,) = OFFSET.unpack_from(payload)
    return int(offset), payload[OFFSET.size :]


class Decoder:
    """Splits a byte stream into frames, whatever pieces it arrives in."""

    def __init__(self, most: int = MAX_PAYLOAD) -> None:
        """most: bytes of the payload of a frame."""
        self._buffer = bytearray()
        self._most = most

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame completed by data. Raises FrameError at the first invalid one."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= HEADER.size:
                length, kind, channel = HEADER.unpack_from(buffer, position)
                if length > self._most:
                    raise FrameError("frame of %d bytes, at most %d" % (length, self._most))
                end = position + HEADER.size + length
                if len(buffer) < end:
                    break
                payload = bytes(memoryview(buffer)[position + HEADER.size : end])
                position = end
                yield kind, channel, payload
        finally:
            del buffer[:position]
