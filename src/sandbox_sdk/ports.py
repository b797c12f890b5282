"""Ports of a sandbox: as ports of this machine, and as previews for browsers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

from sandbox_sdk.blocking import Blocking, blocking
from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import ConnectRequest, Preview, Target, checked
from sandbox_sdk.protocol.sandboxes import Sandboxes

log = logging.getLogger("sandbox.client")

_CHUNK = 256 * 1024


class Forward:
    """A port of this machine that leads into a sandbox, until the block it was made for ends."""

    def __init__(self, sandboxes: Sandboxes, request: ConnectRequest) -> None:
        self._sandboxes = sandboxes
        self._request = request
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.host = ""
        self.port = 0
        """Of this machine."""

    def __repr__(self) -> str:
        return f"<Forward {self.address} to {self._where}>"

    @property
    def address(self) -> str:
        """`127.0.0.1:8080`, for a program that wants to connect."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def _where(self) -> str:
        return f"port {self._request.port}" if self._request.port else str(self._request.path)

    async def open(self, host: str, port: int) -> None:
        """Raises OSError, if the port is taken for example."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_CHUNK)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass
        except (SandboxError, OSError) as exc:
            log.warning("a connection to %s was cut: %s", self._where, exc)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._sandboxes.connect(self._request) as channel:
            both = asyncio.gather(_to_box(reader, channel), _from_box(channel, writer))
            try:
                await both
            finally:
                both.cancel()
                with contextlib.suppress(BaseException):
                    await both
            # What is buffered reaches the program before its connection is taken down.
            writer.close()
            await writer.wait_closed()


class BlockingChannel(Blocking):
    """A connection into a sandbox for synchronous callers. See ByteChannel."""

    read = blocking(ByteChannel.read)
    write = blocking(ByteChannel.write)
    end = blocking(ByteChannel.end)


class PortMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    @contextlib.asynccontextmanager
    async def connect(self, port: int | str) -> AsyncIterator[ByteChannel]:
        """A connection to a port of the sandbox, or to a unix socket in it.

        What it gives has read(), which is b"" once the other end has sent all, write(), and end(),
        which tells the other end that there is nothing more to read.

        Raises NotListening if nobody listens there, SessionNotFound if there is no sandbox.
        """
        sandboxes, request = await self._way_to(port)
        async with sandboxes.connect(request) as channel:
            yield channel

    @contextlib.asynccontextmanager
    async def forward(
        self, port: int | str, *, local_port: int = 0, host: str = "127.0.0.1"
    ) -> AsyncIterator[Forward]:
        """A port of this machine that leads to a port of the sandbox, or to a unix socket in it.

        Any program can connect to it, a database client or a browser for example. It takes
        connections before anybody listens in the sandbox: one for which nobody does is closed, and
        a warning is logged.

        local_port: of this machine; 0 for any that is free, see `port` and `address` of what this
            gives. host: the address to listen at; other machines reach only those that are not
            loopback.
        """
        sandboxes, request = await self._way_to(port)
        forward = Forward(sandboxes, request)
        await forward.open(host, local_port)
        try:
            yield forward
        finally:
            await forward.close()

    async def expose(self, port: int, *, public: bool = False) -> Preview:
        """Make a port of the sandbox a preview: its `url` is for a browser. What listens there, at
        127.0.0.1 or everywhere, may be started before or after; until then a page says so.

        The URL has a token, which becomes a cookie of the preview's own origin; the preview ends
        with the session, or with unexpose(). The same port again gives the same preview.

        public: without a token, for anybody who knows the URL.
        """
        sandboxes, target = await self._connection.ready()
        return await sandboxes.expose(target, port, public=public)

    async def previews(self) -> list[Preview]:
        """The ports that are exposed. Their tokens are not told again: expose() does that."""
        sandboxes, target = await self._connection.ready(makes=False)
        return (await sandboxes.previews(target)).previews

    async def unexpose(self, port: int) -> None:
        """End a preview, and what is open through it. Raises NotFound."""
        sandboxes, target = await self._connection.ready(makes=False)
        await sandboxes.unexpose(target, port)

    async def _way_to(self, port: int | str) -> tuple[Sandboxes, ConnectRequest]:
        sandboxes, target = await self._connection.ready()
        return sandboxes, connect_request(target, port)


def connect_request(target: Target, port: int | str) -> ConnectRequest:
    """port: a number, or the path of a unix socket."""
    where: dict[str, Any] = {"path": port} if isinstance(port, str) else {"port": port}
    return checked(
        ConnectRequest, thread_id=target.thread_id, session_id=target.session_id, **where
    )


async def _to_box(reader: asyncio.StreamReader, channel: ByteChannel) -> None:
    while data := await reader.read(_CHUNK):
        await channel.write(data)
    await channel.end()


async def _from_box(channel: ByteChannel, writer: asyncio.StreamWriter) -> None:
    while data := await channel.read():
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
