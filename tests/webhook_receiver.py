"""A receiver of webhooks on a real socket, which answers as it is told to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.webhooks import verify

SECRET = "a secret of sixteen or more"


@dataclass
class Received:
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def is_signed(self) -> bool:
        return verify(self.body, self.headers, SECRET)


@dataclass
class Receiver:
    url: str = ""
    status: Callable[[Received], int] = lambda _: 200
    received: list[Received] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.2)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            lines = [line.partition(": ") for line in head[1:] if line]
            headers = {name.lower(): value for name, _, value in lines}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            got = Received(headers, body)
            self.received.append(got)
            status = self.status(got)
            place = b"Location: http://127.0.0.1:1/\r\n" if status in (301, 302, 307) else b""
            writer.write(b"HTTP/1.1 %d X\r\n%sContent-Length: 0\r\n\r\n" % (status, place))
            await writer.drain()
            self.changed.set()
        writer.close()


@contextlib.asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", port)
    async with server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield made
