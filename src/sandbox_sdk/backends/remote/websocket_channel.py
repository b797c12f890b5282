"""A connection into a sandbox over a WebSocket of its server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import Internal, RuntimeUnavailable, SandboxError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from sandbox_sdk.backends.remote.direct_websocket import DirectWebSocket

_PIECE = 256 * 1024
"""Bytes in a message; a server takes up to 1 MiB."""
_END = '{"type": "end"}'


class WebSocketChannel(ByteChannel):
    def __init__(self, socket: DirectWebSocket | ClientConnection, url: str) -> None:
        self._socket = socket
        self._url = url
        self._received_all = False

    async def opened(self) -> None:
        """Wait until the server has connected. Raises SandboxError."""
        message = await self._next()
        if isinstance(message, bytes) or message.get("type") != "open":
            raise Internal(f"unexpected answer from {self._url} to a connection: {message!r:.200}")

    async def read(self) -> bytes:
        while not self._received_all:
            message = await self._next()
            if isinstance(message, bytes):
                if message:
                    return message
            elif message.get("type") == "end":
                self._received_all = True
        return b""

    async def write(self, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        view = memoryview(data)
        try:
            for at in range(0, len(view), _PIECE):
                await self._socket.send(view[at : at + _PIECE])
        except ConnectionClosed:
            raise await self._broken() from None

    async def end(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send(_END)
        except ConnectionClosed:
            raise await self._broken() from None

    async def _next(self) -> bytes | dict[str, Any]:
        """The next message; text is JSON. Raises SandboxError."""
        from websockets.exceptions import ConnectionClosed

        try:
            message = await self._socket.recv()
        except ConnectionClosed:
            raise self._cut() from None
        if isinstance(message, bytes):
            return message
        body = json.loads(message)
        if body.get("type") == "error":
            error = body["error"]
            raise SandboxError.from_wire(error["code"], error["message"], error.get("details"))
        found: dict[str, Any] = body
        return found

    async def _broken(self) -> SandboxError:
        """Why nothing can be written. The server may have said so."""
        try:
            while True:
                await self._next()
        except SandboxError as exc:
            return exc

    def _cut(self) -> RuntimeUnavailable:
        return RuntimeUnavailable(f"the connection through {self._url} was cut")
