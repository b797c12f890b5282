"""`python -m bench.metrics`: what a command costs with metrics and without, on two servers side by
side. One caller sends `true` at a pace, servers in turns; CPU time is that of all threads."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from bench.cpu import of_threads
from bench.served import free_port

_BATCH = 100


@asynccontextmanager
async def _server(folder: Path, metrics: str) -> AsyncIterator[tuple[Process, str]]:
    port = free_port()
    settings = {
        "SANDBOX_RUNTIME": "bubblewrap",
        "SANDBOX_STATE_DIR": str(folder),
        "SANDBOX_WORKER_ID": f"bench-metrics-{port}",
        "SANDBOX_PORT": str(port),
        "SANDBOX_PREVIEWS": "false",
        "SANDBOX_METRICS": metrics,
        "SANDBOX_DESTROY_ON_EXIT": "1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandbox_server", "--json",
        env={**os.environ, **settings}, stdout=DEVNULL, stderr=DEVNULL,
    )  # fmt: skip
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _turn(http: aiohttp.ClientSession, url: str, count: int, pause_s: float) -> list[float]:
    """Milliseconds of each call; waits for a server that is not there yet."""
    took: list[float] = []
    while len(took) < count:
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        try:
            body = {"thread_id": "bench", "command": "true"}
            async with http.post(f"{url}/execute", json=body) as answer:
                answer.raise_for_status()
                await answer.read()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.1)
            continue
        took.append(1000 * (time.perf_counter() - began))
    return took


async def main(rounds: int, pause_s: float) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            name: await stack.enter_async_context(_server(folder, name))
            for name in ("true", "false")
        }
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for _, url in servers.values():
            await _turn(http, url, 50, 0)
        took: dict[str, list[float]] = {name: [] for name in servers}
        spent: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(rounds):
            order = list(servers) if number % 2 else list(servers)[::-1]
            for name in order:
                process, url = servers[name]
                before = of_threads(process.pid)
                took[name] += await _turn(http, url, _BATCH, pause_s)
                spent[name].append(1000 * (of_threads(process.pid) - before) / _BATCH)
    for name in servers:
        print(
            f"metrics={name}: {statistics.median(took[name]):.3f} ms a call (median of"
            f" {len(took[name])}), {statistics.median(spent[name]):.4f} ms of CPU a command"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pause-ms", type=float, default=5.0)
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.pause_ms / 1000))
