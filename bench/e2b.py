"""The same calls through the e2b door with e2b's SDK, and through our routes with ours.

python -m bench.e2b; writes docs/benchmarks/e2b.md. Both are asked in turn, on one server.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from e2b import Sandbox

from bench import embedded, machine
from sandbox_sdk import RemoteBackend, SandboxClient

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "e2b.md"
CALLS = 200
WARM_UP = 10
KEY = "bench"
WANTED = 1.5
TEXT = "hello\n" * 100


async def main() -> None:
    about = machine.host()
    with tempfile.TemporaryDirectory(prefix="bench-e2b-") as folder:
        os.chmod(folder, 0o711)
        async with embedded.server(folder, api_keys=f"bench:{KEY}") as url:
            rows = await asyncio.to_thread(_measured, url)
    page = _page(rows, about)
    print(page)
    PAGE.write_text(page)


def _measured(url: str) -> list[tuple[str, list[float], list[float]]]:
    door = f"{url}/e2b"
    theirs = Sandbox.create(timeout=600, api_url=door, sandbox_url=door, api_key=KEY)
    backend = RemoteBackend(url, api_key=KEY)
    try:
        with SandboxClient(backend=backend) as ours:
            return [
                ("a command: `echo hi`", *_in_turn(
                    lambda: theirs.commands.run("echo hi"), lambda: ours.execute("echo hi"))),
                ("write a file of 600 bytes", *_in_turn(
                    lambda: theirs.files.write("a.txt", TEXT),
                    lambda: ours.write_text("a.txt", TEXT))),
                ("read it", *_in_turn(
                    lambda: theirs.files.read("a.txt"), lambda: ours.read_text("a.txt"))),
            ]  # fmt: skip
    finally:
        theirs.kill()


def _in_turn(
    theirs: Callable[[], object], ours: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Milliseconds of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(CALLS + WARM_UP):
        for call, taken in zip((theirs, ours), times, strict=True):
            began = time.perf_counter()
            call()
            if number >= WARM_UP:
                taken.append(1000 * (time.perf_counter() - began))
    return times


def _page(rows: list[tuple[str, list[float], list[float]]], about: dict[str, str]) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    lines = []
    for name, theirs, ours in rows:
        door, own = statistics.median(theirs), statistics.median(ours)
        lines.append(f"| {name} | {door:.1f} | {own:.1f} | {door / own:.2f} |")
    return "\n".join([
        "# What the e2b door costs",
        "",
        f"Measured on {today} by `python -m bench.e2b`: e2b's SDK at `/e2b` and ours at our own"
        f" routes, in turn, {CALLS} times each, on one server with embedded boxes. At most {WANTED}"
        " times as long is wanted. e2b's SDK starts a login shell for every command, ours goes on"
        " with one.",
        "",
        "| | e2b's SDK, p50 ms | ours, p50 ms | times |",
        "| --- | --- | --- | --- |",
        *lines,
        "",
        *machine.table(about),
    ])  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
