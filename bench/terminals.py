"""What a terminal over a WebSocket costs: from a key to its echo, and how much it can show.

python -m bench.terminals [KEYS]; writes docs/benchmarks/terminals.md.

The server is a process of its own with embedded boxes; the client is this process.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect

from bench import embedded, machine
from bench.measure import percentile

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "terminals.md"
MEGABYTES = 100
LINE = 99
"""Characters, besides the two that end a line on a terminal."""


async def main(keys: int) -> None:
    about = machine.host()
    with tempfile.TemporaryDirectory(prefix="bench-terminals-") as folder:
        os.chmod(folder, 0o711)
        async with embedded.server(folder) as http:
            url = http.replace("http://", "ws://")
            echoes = await _echoes(url, keys)
            rate = await _rate(url)
    page = _page(echoes, rate, about)
    print(page)
    PAGE.write_text(page)


async def _echoes(url: str, keys: int) -> list[float]:
    """Milliseconds from a key to its echo by bash's own line editor, 50 ms apart."""
    times = []
    async with connect(f"{url}/terminal?thread_id=keys", compression=None) as socket:
        await _until(socket, b"$ ")
        for number in range(keys):
            key = b"abcdefghij"[number % 10 : number % 10 + 1]
            began = time.perf_counter()
            await socket.send(key)
            await _until(socket, key)
            times.append(1000 * (time.perf_counter() - began))
            if number % 40 == 39:
                await socket.send(b"\x15")  # Empties the line.
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.05)
    return times


async def _until(socket: ClientConnection, text: bytes) -> None:
    shown = b""
    while text not in shown:
        message = await socket.recv()
        if isinstance(message, bytes):
            shown += message


async def _rate(url: str) -> float:
    """Megabytes a second that arrive here."""
    lines = MEGABYTES * 1_000_000 // (LINE + 2)
    command = f"yes {'x' * LINE} | head -n {lines}"
    url = f"{url}/terminal?thread_id=rate&command={command.replace(' ', '%20')}"
    async with connect(url, compression=None, max_size=None) as socket:
        began, size = time.perf_counter(), 0
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                size += len(message)
            elif json.loads(message)["type"] == "exit":
                return size / 1e6 / (time.perf_counter() - began)


def _page(echoes: list[float], rate: float, about: dict[str, str]) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    p50, p95 = percentile(echoes, 50), percentile(echoes, 95)
    return "\n".join([
        "# What a terminal over a WebSocket costs",
        "",
        f"Measured on {today} by `python -m bench.terminals`;"
        " [the API reference](../../API_REFERENCE.md#terminals) says what it is.",
        "",
        "| embedded boxes with the default limits, client on the same machine | | wanted |",
        "| --- | --- | --- |",
        f"| from a key to its echo | p50 {p50:.1f} ms, p95 {p95:.1f} ms | at most 4 ms |",
        f"| what it can show | {rate:.0f} MB/s | at least 20 MB/s |",
        "",
        f"{len(echoes)} keys, 50 ms apart, into an interactive bash; {MEGABYTES} MB of lines of"
        f" {LINE + 2} bytes.",
        "",
        *machine.table(about),
    ])  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
