"""The HTTP connections to what listens in boxes, kept for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import h11
import structlog

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.models import ConnectRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.previews.limits import PreviewLimits
from sandbox_server.sessions.preview_address import Origin
from sandbox_server.tasks import stop

log = structlog.get_logger()

SandboxesOf = Callable[[str], Sandboxes]
"""By tenant."""
_CLOSE_S = 1.0


@dataclass(frozen=True)
class Destination:
    """Where requests go, as far as connections differ by it."""

    origin: Origin
    tenant: str
    unpause: bool = True
    """Whether they wake a paused session."""


class BoxConnection:
    """One connection. It is opened, and closed, by a task of its own."""

    def __init__(self, to: Destination, *, head_bytes: int) -> None:
        self.to = to
        self.reused = False
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=head_bytes)
        self.read: asyncio.Task[bytes] | None = None
        """What is read ahead while it waits for its next request."""
        self._closing = asyncio.Event()
        self._channel: ByteChannel | None = None
        self._life: asyncio.Task[None] | None = None

    async def open(self, sandboxes: Sandboxes) -> None:
        """Raises SandboxError: NotListening, SessionNotFound and so on."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(sandboxes, opened))
        try:
            await opened
        except BaseException:
            await self.close()
            raise

    async def _live(self, sandboxes: Sandboxes, opened: asyncio.Future[None]) -> None:
        session_id, port = self.to.origin
        request = ConnectRequest(session_id=session_id, port=port, unpause=self.to.unpause)
        try:
            async with sandboxes.connect(request) as self._channel:
                if not opened.done():
                    opened.set_result(None)
                await self._closing.wait()
        except SandboxError as exc:
            if not opened.done():
                opened.set_exception(exc)
        except Exception:
            log.exception("preview.no_connection")
            if not opened.done():
                opened.set_exception(RuntimeUnavailable("the connection failed; the log says why"))

    async def close(self) -> None:
        if self.read is not None:
            await stop(self.read)
        self._closing.set()
        if self._life is not None:
            if self._channel is not None:
                await asyncio.wait([self._life], timeout=_CLOSE_S)
            await stop(self._life)

    @property
    def channel(self) -> ByteChannel:
        assert self._channel is not None
        return self._channel

    async def send(self, *events: h11.Event) -> None:
        """Raises SandboxError."""
        data = b"".join(self.http.send(event) or b"" for event in events)
        if data:
            await self.channel.write(data)

    async def receive(self) -> None:
        """Read more of the response. Raises SandboxError."""
        if self.read is not None:
            reading, self.read = self.read, None
            self.http.receive_data(await reading)
        else:
            self.http.receive_data(await self.channel.read())

    def is_done(self) -> bool:
        """Whether another request can follow."""
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE

    def wait(self) -> None:
        """Get ready for the next request, and notice if the box closes meanwhile."""
        self.http.start_next_cycle()
        self.read = asyncio.create_task(self.channel.read())


class BoxConnections:
    """Close it."""

    def __init__(self, sandboxes_of: SandboxesOf, limits: PreviewLimits) -> None:
        self._sandboxes_of = sandboxes_of
        self._limits = limits
        self._waiting: dict[Destination, list[tuple[BoxConnection, asyncio.TimerHandle]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, to: Destination, *, new: bool) -> BoxConnection:
        """new: not one that was used before. Raises SandboxError."""
        while not new and (connection := self._take(to)) is not None:
            if connection.read and not connection.read.done():
                connection.reused = True
                return connection
            self.drop(connection)
        connection = BoxConnection(to, head_bytes=self._limits.head_bytes)
        await connection.open(self._sandboxes_of(to.tenant))
        return connection

    def put(self, connection: BoxConnection) -> None:
        """Take back a connection whose response is complete, or give it up."""
        waiting = self._waiting.setdefault(connection.to, [])
        if not connection.is_done() or len(waiting) >= self._limits.box_idle:
            self.drop(connection)
            return
        connection.wait()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limits.box_idle_s, self._expire, connection)
        waiting.append((connection, timer))

    def drop(self, connection: BoxConnection) -> None:
        """Close it, in the background: a box may take its time."""
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        if not self._waiting.get(connection.to):
            self._waiting.pop(connection.to, None)

    def _take(self, to: Destination) -> BoxConnection | None:
        waiting = self._waiting.get(to)
        if not waiting:
            return None
        connection, timer = waiting.pop()
        timer.cancel()
        return connection

    def _expire(self, connection: BoxConnection) -> None:
        waiting = self._waiting.get(connection.to, [])
        waiting[:] = [each for each in waiting if each[0] is not connection]
        self.drop(connection)

    async def close(self) -> None:
        for waiting in list(self._waiting.values()):
            for connection, timer in waiting:
                timer.cancel()
                self.drop(connection)
        self._waiting.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)
