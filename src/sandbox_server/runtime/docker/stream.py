"""A byte stream to a process of `docker exec`: its stdin and stdout.

We upgrade a dedicated connection from HTTP to raw TCP. From then on we send plain bytes, and the
engine sends frames: an 8-byte header (stream, length), then data.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_server.runtime.docker.engine import Engine
from sandbox_server.runtime.streams import SocketStream

_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_MAX_STDERR = 4096
_ANSWER_S = 30.0
_SWITCHING_PROTOCOLS = 101
_GONE = (404, 409)
"""404: no such container or exec. 409: the container is not running."""


class Demultiplexer:
    """Splits the frames of an exec into stdout and stderr."""

    def __init__(self) -> None:
        self.stderr = b""
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes of stdout in data. The first 4 KiB of stderr are kept in `stderr`."""
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._left == 0:
                missing = _HEADER.size - len(self._header)
                self._header += data[position : position + missing]
                position += missing
                if len(self._header) == _HEADER.size:
                    self._stream, self._left = _HEADER.unpack(self._header)
                    self._header = b""
                continue
            piece = data[position : position + self._left]
            position += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                out.append(piece)
            elif self._stream == _STDERR:
                self.stderr = (self.stderr + piece)[:_MAX_STDERR]
        return b"".join(out)


class ExecStream(SocketStream):
    """A ByteStream to the process of an exec."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._frames = Demultiplexer()
        self._begun = False

    async def read(self) -> bytes:
        while True:
            data = await super().read()
            out = self._frames.feed(data)
            if out and not self._begun:
                _check_first(out)
                self._begun = True
            if out or not data:
                return out

    async def close(self) -> None:
        # Not wait_closed(): concurrent callers share its future, so cancelling one cancels all.
        self._writer.transport.abort()


def _check_first(data: bytes) -> None:
    """If an engine cannot enter a container, it writes the error to stdout ("OCI runtime exec
    failed"). A warden's first byte is the high byte of a frame length: zero.
    """
    if data[0] != 0:
        message = " ".join(data[:_MAX_STDERR].decode("utf-8", "replace").split())
        raise ConnectionResetError(f"the relay did not start: {message[:300]}")


async def open_exec(engine: Engine, exec_id: str, *, gone: str) -> ExecStream:
    """Start a created exec and take over its connection.

    Raises SessionLost with the message `gone` if its container is not running any more,
    RuntimeUnavailable if the engine does not answer or refuses.
    """
    try:
        reader, writer = await engine.endpoint.connect()
    except OSError as exc:
        raise engine.unreachable(exc) from exc
    try:
        async with asyncio.timeout(_ANSWER_S):
            await _upgrade(reader, writer, exec_id, gone)
    except (OSError, EOFError, LookupError, ValueError, asyncio.LimitOverrunError) as exc:
        writer.close()
        raise engine.unreachable(exc) from exc
    except BaseException:
        writer.close()
        raise
    if not engine.endpoint.path:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return ExecStream(reader, writer)


async def _upgrade(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exec_id: str, gone: str
) -> None:
    body = json.dumps({"Detach": False, "Tty": False})
    writer.write(
        f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
        f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        f"{body}".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status != _SWITCHING_PROTOCOLS:
        answer = (await reader.read(1000)).decode("utf-8", "replace")
        if status in _GONE or "is not running" in answer:
            raise SessionLost(gone)
        raise RuntimeUnavailable(f"the Docker engine refused a stream ({status}): {answer.strip()}")
