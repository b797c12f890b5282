"""A way to Redis that is cut in the middle of something, and then leads nowhere for a while."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

SIZE = 65536


class FlakyWay:
    """Cut when `cut_at` has been sent to Redis so many times; closed until it is opened again."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._connections: set[asyncio.Task[None]] = set()
        self._words: tuple[bytes, int] | None = None
        self.closed = asyncio.Event()
        self.url = ""

    def cut_at(self, word: bytes, *, times: int) -> None:
        self._words = word, times

    def open(self) -> None:
        self._words = None
        self.closed.clear()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self.closed.is_set():
                await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_redis = await asyncio.open_connection("127.0.0.1", self._upstream)
        answering = asyncio.create_task(_pipe(upstream, writer))
        try:
            while data := await reader.read(SIZE):
                to_redis.write(data)
                await to_redis.drain()
                if self._words is not None:
                    word, times = self._words
                    self._words = word, times - data.count(word)
                    if times <= data.count(word):
                        self.cut()
        finally:
            to_redis.transport.abort()
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    def cut(self) -> None:
        self.closed.set()
        for task in self._connections:
            task.cancel()

    async def end(self) -> None:
        tasks = [*self._connections]
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(SIZE):
            sink.write(data)
            await sink.drain()


@contextlib.asynccontextmanager
async def flaky_way(port: int) -> AsyncIterator[FlakyWay]:
    way = FlakyWay(port)
    server = await asyncio.start_server(way.accept, "127.0.0.1", 0)
    way.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield way
    finally:
        server.close()
        await way.end()
