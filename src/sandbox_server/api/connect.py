"""GET /connect: a connection to a port or a unix socket of a sandbox, over a WebSocket.

Binary messages are bytes of the connection. The text message `{"type": "open"}` tells that it is
made, and `{"type": "end"}`, in either direction, that nothing more comes from there.
"""

from __future__ import annotations

import asyncio

from pydantic_core import from_json
from starlette.websockets import WebSocket

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import ConnectRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.api.operations import parse_query
from sandbox_server.api.websockets import accept, lost, received
from sandbox_server.tasks import stop

_OPEN = '{"type":"open"}'
_END = '{"type":"end"}'


async def connect(socket: WebSocket, sandboxes: Sandboxes) -> None:
    """Serve one connection, until both ends have sent all, or one of them leaves."""
    request = parse_query(ConnectRequest, socket)
    accepting = asyncio.create_task(accept(socket))  # While the box connects.
    try:
        async with sandboxes.connect(request) as channel:
            await accepting
            await socket.send_text(_OPEN)
            await _carry(socket, channel)
    finally:
        await accepting


async def _carry(socket: WebSocket, channel: ByteChannel) -> None:
    ended = asyncio.Event()
    to_box = asyncio.create_task(_to_box(socket, channel, ended))
    from_box = asyncio.create_task(_from_box(socket, channel, ended))
    # Whoever leaves while the box takes nothing is not heard by _to_box.
    left = asyncio.create_task(lost(socket).wait())
    tasks = (to_box, from_box, left)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await stop(*tasks)
    for task in done:
        task.result()


async def _to_box(socket: WebSocket, channel: ByteChannel, ended: asyncio.Event) -> None:
    """Goes on after the end, to learn that the caller has left."""
    while True:
        message = await received(socket)
        if (text := message.get("text")) is not None:
            _check_end(text)
            if not ended.is_set():
                await channel.end()
                ended.set()
        elif data := message.get("bytes"):
            if ended.is_set():
                raise InvalidRequest("bytes after the end")
            await channel.write(data)


async def _from_box(socket: WebSocket, channel: ByteChannel, ended: asyncio.Event) -> None:
    while data := await channel.read():
        await socket.send_bytes(data)
    await socket.send_text(_END)
    await ended.wait()


def _check_end(text: str) -> None:
    try:
        message = from_json(text)
    except ValueError:
        message = None
    if not isinstance(message, dict) or message.get("type") != "end":
        raise InvalidRequest('a text message is {"type": "end"}; bytes go in binary messages')
