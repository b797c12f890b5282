"""What one tenant notices of another that floods the server and is at its limit.

python -m bench.tenants; writes docs/benchmarks/tenants.md. The server, the flood and the caller
that is measured are processes of their own. The flood asks again as soon as it is answered, on all
its connections, and does not wait as it is told to.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from bench import embedded, machine
from sandbox_sdk import AsyncSandboxClient, RemoteBackend

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "tenants.md"
CALLS = 400
EVERY_S = 0.025
CONNECTIONS = (20, 100)
LIMITS = "noisy: requests=20, commands=5; *: requests=10000"


async def main() -> None:
    about = machine.host()
    with tempfile.TemporaryDirectory(prefix="bench-tenants-") as folder:
        os.chmod(folder, 0o711)
        async with embedded.server(
            folder, api_keys="noisy:noisy,quiet:quiet", tenant_limits=LIMITS
        ) as url:
            rows = [("alone", 0, 0.0, await _quiet(url))]
            for connections in CONNECTIONS:
                flood = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "bench.tenants", url, str(connections),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                assert flood.stdout is not None
                await flood.stdout.readline()
                times = await _quiet(url)
                told, _ = await flood.communicate(b"\n")
                rows.append((f"{connections} connections", connections, float(told), times))
    page = _page(rows, about)
    print(page)
    PAGE.write_text(page)


async def _quiet(url: str) -> list[float]:
    """Milliseconds of commands, one every 25 ms."""
    times = []
    async with (
        RemoteBackend(url, api_key="quiet") as backend,
        AsyncSandboxClient("quiet", backend=backend) as sandbox,
    ):
        await sandbox.execute("true")
        for _ in range(CALLS):
            began = time.perf_counter()
            await sandbox.execute("true")
            times.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(EVERY_S)
        await sandbox.cleanup()
    return sorted(times)


async def _flood(url: str, connections: int) -> None:
    """Until a line comes on stdin; says how many answers a second there were."""
    counted, began = 0, time.monotonic()

    async def one(number: int) -> None:
        nonlocal counted
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            while True:
                await http.post(
                    "/execute",
                    json={"thread_id": f"t{number % 5}", "command": "true"},
                    headers={"x-api-key": "noisy"},
                )
                counted += 1

    tasks = [asyncio.create_task(one(number)) for number in range(connections)]
    await asyncio.sleep(2)
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(f"{counted / (time.monotonic() - began):.0f}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _page(rows: list[tuple[str, int, float, list[float]]], about: dict[str, str]) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    alone = rows[0][3]
    lines = [
        f"| {name} | {rate:.0f} | {statistics.median(times):.1f} | {_p95(times):.1f} |"
        f" {_p95(times) / _p95(alone):.2f} |"
        for name, _, rate, times in rows
    ]
    return "\n".join([
        "# What tenants notice of each other",
        "",
        f"Measured on {today} by `python -m bench.tenants`; [Access](../access.md) says what limits"
        " there are.",
        "",
        f"A caller runs `true` every {1000 * EVERY_S:.0f} ms, {CALLS} times, while another tenant"
        " asks as fast as it is answered, with a limit of 20 requests a second.",
        "",
        "| the other tenant | answers to it a second | p50 ms | p95 ms | p95 against alone |",
        "| --- | --- | --- | --- | --- |",
        *lines,
        "",
        *machine.table(about),
    ])  # fmt: skip


def _p95(times: list[float]) -> float:
    return times[int(0.95 * len(times))]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(_flood(sys.argv[1], int(sys.argv[2])))
    else:
        asyncio.run(main())
