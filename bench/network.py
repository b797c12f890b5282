"""What a connection into a sandbox costs, and how fast bytes go through it.

python -m bench.network; writes docs/benchmarks/network.md.

Beside each: the same program on the host, reached by a plain socket. Embedded boxes with two cores,
since the program that answers has to keep up. The server is a process of its own; the client is
this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from bench import embedded, machine
from sandbox_sdk import AsyncSandboxClient, ByteChannel, LocalBackend, RemoteBackend, Sandboxes

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "network.md"
CONNECTIONS = 300
BLOCK = bytes(1 << 18)
BLOCKS = 800
PORT = 8080
PROGRAM = f"""
import socket, sys, threading
def serve(one):
    with one:
        kind = one.recv(1)
        if kind == b"c":
            size = 0
            while data := one.recv(1 << 18): size += len(data)
            one.sendall(b"%d" % size)
        elif kind == b"s":
            for _ in range({BLOCKS}): one.sendall(bytes({len(BLOCK)}))
        else:
            one.sendall(kind)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""

Connect = Callable[[], AbstractAsyncContextManager[ByteChannel]]
Figures = dict[str, float]


class _Plain(ByteChannel):
    """A socket of the host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(1 << 18)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write_eof()


@contextlib.asynccontextmanager
async def _plainly(port: int) -> AsyncIterator[ByteChannel]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield _Plain(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def main() -> None:
    about = machine.host()
    found: dict[str, Figures] = {"a socket of the host": await _of_the_host()}
    with tempfile.TemporaryDirectory(prefix="bench-network-") as folder:
        os.chmod(folder, 0o711)
        local = LocalBackend(
            runtime="bubblewrap", state_dir=folder, max_cpus=2.0, destroy_on_exit=True
        )
        found |= await _of_sandboxes("in-process", local)
        async with embedded.server(f"{folder}/server", max_cpus="2") as url:
            found |= await _of_sandboxes("over HTTP", RemoteBackend(url))
    page = _page(found, about)
    print(page)
    PAGE.write_text(page)


async def _of_the_host() -> Figures:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, "0", stdout=PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        return await _figures(lambda: _plainly(port))
    finally:
        process.terminate()
        await process.wait()


async def _of_sandboxes(way: str, backend: Sandboxes) -> dict[str, Figures]:
    """By connect(), and through a forwarded port."""
    async with AsyncSandboxClient(backend=backend, limits={"cpus": 2.0}) as sandbox:
        await sandbox.write_text("program.py", PROGRAM)
        await sandbox.start(f"exec python3 program.py {PORT} > log")
        await sandbox.execute("until grep -q . log; do sleep 0.05; done")
        direct = await _figures(lambda: sandbox.connect(PORT))
        async with sandbox.forward(PORT) as forward:
            forwarded = await _figures(lambda: _plainly(forward.port))
    return {f"`connect()` {way}": direct, f"`forward()` {way}": forwarded}


async def _figures(connect: Connect) -> Figures:
    times = []
    for _ in range(CONNECTIONS):
        began = time.perf_counter()
        async with connect() as channel:
            await channel.write(b"x")
            await channel.read()
            times.append(1000 * (time.perf_counter() - began))
    return {
        "connection": statistics.median(times),
        "out": await _timed(connect, _receive),
        "in": await _timed(connect, _send),
    }


async def _timed(connect: Connect, work: Callable[[ByteChannel], AsyncIterator[int]]) -> float:
    """The best of three, in MB/s: a slower one tells of something else on the machine."""
    rates = []
    for _ in range(3):
        async with connect() as channel:
            began = time.perf_counter()
            size = sum([count async for count in work(channel)])
            rates.append(size / 1e6 / (time.perf_counter() - began))
    return max(rates)


async def _receive(channel: ByteChannel) -> AsyncIterator[int]:
    await channel.write(b"s")
    while data := await channel.read():
        yield len(data)


async def _send(channel: ByteChannel) -> AsyncIterator[int]:
    await channel.write(b"c")
    for _ in range(BLOCKS):
        await channel.write(BLOCK)
        yield len(BLOCK)
    await channel.end()
    assert int(await channel.read()) == BLOCKS * len(BLOCK)


def _page(found: dict[str, Figures], about: dict[str, str]) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    rows = [
        f"| {name} | {each['connection']:.2f} | {each['out']:.0f} | {each['in']:.0f} |"
        for name, each in found.items()
    ]
    size = BLOCKS * len(BLOCK) // 1_000_000
    return "\n".join([
        "# What connections into a sandbox cost",
        "",
        f"Measured on {today} by `python -m bench.network`; [Network](../network.md) says what they"
        " are.",
        "",
        f"A connection: connect, send a byte, get it back; the median of {CONNECTIONS}, in"
        f" milliseconds. Out and in: {size} MB from the sandbox and into it, in MB/s. Everything"
        " shares the machine's cores: the program that answers, its box, the server and the"
        " client.",
        "",
        "| | connection, ms | out, MB/s | in, MB/s |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        *machine.table(about),
    ])  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
