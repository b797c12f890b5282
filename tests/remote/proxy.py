"""A proxy between a client and its server that does to connections what networks do."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

SIZE = 65536


@dataclass(frozen=True)
class Closed:
    """The connection ends before anything was read from it."""


@dataclass(frozen=True)
class Cut:
    """The answer ends after the first of these bytes; where there are none, before its first."""

    after: bytes = b""


@dataclass(frozen=True)
class Silent:
    """The answer stops after the first of these bytes, and the connection stays open."""

    after: bytes = b""


@dataclass(frozen=True)
class Answers:
    """Somebody else answers, and the server never hears of it."""

    status: str
    headers: str = ""
    body: bytes = b""

    def sent(self) -> bytes:
        length = f"content-length: {len(self.body)}\r\nconnection: close\r\n"
        return f"HTTP/1.1 {self.status}\r\n{self.headers}{length}\r\n".encode() + self.body


Fault = Closed | Cut | Silent | Answers


class Proxy:
    """The next calls have the faults of the list, those after it none."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.faults: deque[Fault] = deque()
        self.accepted = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """From now on connections are refused, and those there are have ended."""
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer, self.faults.popleft() if self.faults else None)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> None:
        if isinstance(fault, Closed):
            return
        if isinstance(fault, Answers):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(fault.sent())
            # Until the client is done with it: what is unread when a socket closes resets it.
            while await reader.read(SIZE):
                pass
            return
        to_server, from_client = await asyncio.open_connection("127.0.0.1", self._upstream)
        sending = asyncio.create_task(_send(reader, from_client))
        try:
            await _answer(to_server, writer, fault)
        finally:
            from_client.transport.abort()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, EOFError):
        head = await reader.readuntil(b"\r\n\r\n")
        # One call a connection, so that a fault is a call's.
        head = head.replace(b"\r\nConnection: keep-alive\r\n", b"\r\n")
        assert b"\r\nconnection:" not in head.lower()
        writer.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        while data := await reader.read(SIZE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Cut | Silent | None
) -> None:
    passed = b""
    while data := await reader.read(SIZE):
        if fault is not None:
            place = (passed + data).find(fault.after)
            if place >= 0:
                writer.write((passed + data)[len(passed) : place + len(fault.after)])
                await writer.drain()
                if isinstance(fault, Silent):
                    await asyncio.Event().wait()
                # A polite end: an abrupt one may take what is on its way along.
                writer.write_eof()
                await asyncio.sleep(0.1)
                return
        passed += data
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(int(url.rpartition(":")[2]))
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.down()
