"""Byte streams over asyncio, and the error that ends one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Protocol

from sandbox_server.private import short_path

_READ_SIZE = 256 * 1024
BUFFER = 1 << 20


class ByteStream(Protocol):
    """A byte stream to one warden. Every error shows as its end: read() returns b"", write()
    raises ConnectionError."""

    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""

    async def write(self, data: bytes) -> None:
        """Send all of data; waits until the buffer has room. Raises ConnectionError."""

    def write_now(self, data: bytes) -> bool:
        """Send all of data without waiting; False if that is not possible, and nothing was sent.
        Raises ConnectionError."""

    async def close(self) -> None:
        """Idempotent."""


class SocketStream:
    """A ByteStream over a stream socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect_unix(cls, path: Path) -> SocketStream:
        """Paths may be longer than the kernel's 107 bytes. Raises OSError."""
        with short_path(path) as name:
            reader, writer = await asyncio.open_unix_connection(name, limit=BUFFER)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        return cls(reader, writer)

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ_SIZE)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as exc:
            raise ConnectionError(str(exc)) from exc

    def write_now(self, data: bytes) -> bool:
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(data)
        if transport.is_closing():
            raise ConnectionError("the stream was closed")
        return True

    async def close(self) -> None:
        # abort(), not close(): closing would wait for a peer that does not read.
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            # Shielded: concurrent closes share this future, and cancelling one would cancel all.
            await asyncio.shield(self._writer.wait_closed())
