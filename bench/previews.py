"""What a request through a preview costs beside a plain one to the same program.

python -m bench.previews; writes docs/benchmarks/previews.md.

The program is on the host for the plain requests, and in an embedded box with two cores for the
others. The server is a process of its own; the client is this process.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from urllib.parse import urlsplit

from bench import embedded, machine
from sandbox_sdk import AsyncSandboxClient, RemoteBackend

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "previews.md"
REQUESTS = 1000
MEGABYTES = 200
PORT = 8080
PROGRAM = """
import asyncio, sys
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            size = int(head.lower().partition(b"content-length:")[2].split(b"\\r")[0] or 0)
            while size:
                size -= len(await reader.read(min(size, 1 << 18)))
            much = int(head.split()[1][1:] or 0) << 20
            body = much or 5
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % body)
            while body:
                piece = bytes(min(body, 1 << 18))
                body -= len(piece)
                writer.write(piece)
                await writer.drain()
    except (EOFError, ConnectionError):
        pass
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
Figures = dict[str, float]


class Client:
    """One connection, and as little as possible besides."""

    def __init__(self, port: int, host: str, cookie: str = "") -> None:
        self._port = port
        self._head = f"Host: {host}\r\nCookie: {cookie}\r\n".encode()

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        self._writer.close()

    async def get(self, path: str) -> int:
        """The size of the body."""
        self._writer.write(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), self._head))
        return await self._answer()

    async def post(self, size: int) -> int:
        length = b"Content-Length: %d\r\n\r\n" % size
        self._writer.write(b"POST /0 HTTP/1.1\r\n" + self._head + length)
        for _ in range(size >> 18):
            self._writer.write(bytes(1 << 18))
            await self._writer.drain()
        return await self._answer()

    async def _answer(self) -> int:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in head, head
        size = left = int(head.partition(b"content-length:")[2].split(b"\r")[0])
        while left:
            left -= len(await self._reader.read(left))
        return size


async def figures(client: Client) -> Figures:
    kept, fresh = [], []
    await client.open()
    for _ in range(REQUESTS):
        began = time.perf_counter()
        await client.get("/0")
        kept.append(1000 * (time.perf_counter() - began))
    rates: dict[str, float] = {}
    for name in ("out", "in"):
        began = time.perf_counter()
        if name == "out":
            await client.get(f"/{MEGABYTES}")
        else:
            await client.post(MEGABYTES << 20)
        rates[name] = MEGABYTES * 1.048576 / (time.perf_counter() - began)
    client.close()
    for _ in range(REQUESTS // 4):
        began = time.perf_counter()
        await client.open()
        await client.get("/0")
        fresh.append(1000 * (time.perf_counter() - began))
        client.close()
    return {"kept": statistics.median(kept), "fresh": statistics.median(fresh), **rates}


async def main() -> None:
    about = machine.host()
    found = {"a port of the host": await _plain()}
    with tempfile.TemporaryDirectory(prefix="bench-previews-") as folder:
        os.chmod(folder, 0o711)
        for name, processes in (("one process", 1), ("two processes", 2)):
            async with embedded.server(
                f"{folder}/{processes}", max_cpus="2", processes=str(processes)
            ) as url:
                found[f"a preview, {name}"] = await _preview(url)
    page = _page(found, about)
    print(page)
    PAGE.write_text(page)


async def _plain() -> Figures:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, "0", stdout=PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        return await figures(Client(port, f"127.0.0.1:{port}"))
    finally:
        process.terminate()
        await process.wait()


async def _preview(url: str) -> Figures:
    backend = RemoteBackend(url)
    async with AsyncSandboxClient(backend=backend, limits={"cpus": 2.0}) as sandbox:
        await sandbox.write_text("program.py", PROGRAM)
        await sandbox.start(f"exec python3 program.py {PORT} > log")
        await sandbox.execute("until grep -q . log; do sleep 0.05; done")
        preview = await sandbox.expose(PORT)
        place = urlsplit(preview.url)
        cookie = f"sandbox_preview={preview.token}"
        return await figures(Client(place.port or 80, place.netloc, cookie))


def _page(found: dict[str, Figures], about: dict[str, str]) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    rows = [
        f"| {name} | {each['kept']:.2f} | {each['fresh']:.2f} | {each['out']:.0f} |"
        f" {each['in']:.0f} |"
        for name, each in found.items()
    ]
    return "\n".join([
        "# What a request through a preview costs",
        "",
        f"Measured on {today} by `python -m bench.previews`; [Network](../network.md) says what"
        " previews are.",
        "",
        f"A GET of five bytes: the median of {REQUESTS} in one connection, and of"
        f" {REQUESTS // 4} with a connection each, in milliseconds. Out and in: {MEGABYTES} MiB"
        " down and up, in MB/s. Everything shares the machine's cores: the program that answers,"
        " its box, the server and the client. Of two processes, the one that serves previews may"
        " not be the one that has the sandbox.",
        "",
        "| | GET, ms | new connection, ms | out, MB/s | in, MB/s |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        *machine.table(about),
    ])  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
