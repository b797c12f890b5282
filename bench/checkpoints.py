"""What a checkpoint, a fork, a restore and a resumed thread cost, by the size of their files.

python -m bench.checkpoints [MEGABYTES…]; writes docs/benchmarks/checkpoints.md.

Both ways on embedded boxes: copies of whole disks, and files one by one. Beside them `docker
commit` and `docker run` with the same files in a container's own layer, where an engine answers.
The server is a process of its own; the client is this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import embedded, machine
from sandbox_sdk import AsyncSandboxClient, InvalidRequest, RemoteBackend

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "checkpoints.md"
SIZES = (1, 100, 1000)
WAYS = {"disks": "true", "files": "false"}
FORKS = 10
IDLE_S = 1.0
STEPS = ("first checkpoint", "checkpoint", "restore", f"fork into {FORKS}", "fork", "resume",
         "command", "command with a point", "undo")  # fmt: skip
COMMANDS = 100
IMAGE = "debian:bookworm-slim"

Times = dict[str, list[float]]
Timed = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def main(sizes: tuple[int, ...]) -> None:
    about = machine.host()
    found: dict[str, dict[int, Times]] = {}
    for way, pool in WAYS.items():
        with tempfile.TemporaryDirectory(prefix="bench-checkpoints-") as folder:
            os.chmod(folder, 0o711)
            async with (
                embedded.server(
                    folder, disk_limit="2g", checkpoint_quota="200g", disk_pool=pool
                ) as url,
                RemoteBackend(url) as backend,
            ):
                print(way, (await backend.health()).checkpoints, flush=True)
                found[way] = {size: await _measured(backend, size) for size in sizes}
    found["docker"] = {size: _docker(size) for size in sizes} if _has_engine() else {}
    page = _page(found, sizes, about)
    print(page)
    PAGE.write_text(page)


async def _measured(backend: RemoteBackend, megabytes: int) -> Times:
    times: Times = {}
    rounds = 3 if megabytes >= 1000 else 7

    async def timed(step: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began = time.perf_counter()
        done = await work()
        times.setdefault(step, []).append(1000 * (time.perf_counter() - began))
        return done

    name = f"size-{megabytes}"
    async with AsyncSandboxClient(name, backend=backend) as sandbox:
        await sandbox.create_session(persist=True)
        await sandbox.execute(f"head -c {megabytes}000000 /dev/urandom > data; sync", timeout=300)
        await timed("first checkpoint", sandbox.checkpoint)
        for number in range(rounds):
            await sandbox.execute(f"echo {number} > small")
            made = await timed("checkpoint", sandbox.checkpoint)
            await timed("restore", partial(sandbox.rewind, made))
        for into in (1, FORKS):
            step = "fork" if into == 1 else f"fork into {FORKS}"
            for _ in range(rounds if into == 1 else 1):
                for each in await timed(step, partial(sandbox.fork, into)):
                    await each.cleanup()
                    await each.close()
        await sandbox.cleanup()
    await _resumed(backend, f"{name}-idle", made.checkpoint_id, timed, rounds)
    with contextlib.suppress(InvalidRequest):  # Not to be had file by file.
        await _undone(backend, f"{name}-undo", made.checkpoint_id, timed, rounds)
    return times


async def _undone(
    backend: RemoteBackend, name: str, checkpoint_id: str, timed: Timed, rounds: int
) -> None:
    """The same commands in a session without a history and in one with."""
    for history, step in ((True, "command with a point"), (False, "command")):
        async with AsyncSandboxClient(name, backend=backend) as sandbox:
            await sandbox.create_session(checkpoint_id=checkpoint_id, history=history)
            for number in range(COMMANDS):
                await timed(step, partial(sandbox.execute, f"echo {number} > small"))
            for _ in range(rounds if history else 0):
                await timed("undo", sandbox.undo)
            await sandbox.cleanup()


async def _resumed(
    backend: RemoteBackend,
    name: str,
    checkpoint_id: str,
    timed: Timed,
    rounds: int,
) -> None:
    async with AsyncSandboxClient(name, backend=backend) as sandbox:
        await sandbox.create_session(
            checkpoint_id=checkpoint_id, persist=True, idle_timeout_s=IDLE_S
        )
        for _ in range(rounds):
            await _ended(sandbox, name)
            result = await timed("resume", partial(sandbox.execute, "true"))
            assert result.session_state == "resumed"
        await sandbox.cleanup()


async def _ended(sandbox: AsyncSandboxClient, name: str) -> None:
    while True:
        found = (await sandbox.sessions()).sessions
        if all(each.thread_id != name for each in found):
            return
        await asyncio.sleep(0.2)


def _has_engine() -> bool:
    return _docker_run("version").returncode == 0


def _docker_run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)


def _docker(megabytes: int) -> Times:
    """A container with the files, committed, and one of the new image."""
    times: Times = {}
    fill = f"head -c {megabytes}000000 /dev/urandom > /data; sync; sleep 600"
    box = _docker_run("run", "-d", "--network", "none", IMAGE, "bash", "-c", fill).stdout.strip()
    while int(_docker_run("exec", box, "stat", "-c%s", "/data").stdout or 0) < megabytes * 1e6:
        time.sleep(0.2)
    for number in range(3):
        began = time.perf_counter()
        image = _docker_run("commit", box, f"bench-checkpoints:{number}").stdout.strip()
        times.setdefault("checkpoint", []).append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        _docker_run("run", "--rm", "--network", "none", image, "true")
        times.setdefault("restore", []).append(1000 * (time.perf_counter() - began))
        _docker_run("rmi", "-f", image)
    _docker_run("rm", "-f", box)
    return times


def _page(found: dict[str, dict[int, Times]], sizes: tuple[int, ...], about: dict[str, str]) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    names = {
        "disks": "copies of disks",
        "files": "file by file",
        "docker": "`docker commit`, `run`",
    }
    heads = [f"{size} MB, {names[way]}" for size in sizes for way in found if found[way]]
    rows = [
        f"| {step} | "
        + " | ".join(
            _shown(found[way][size].get(step)) for size in sizes for way in found if found[way]
        )
        + " |"
        for step in STEPS
    ]
    largest = sizes[-1]
    rate = largest / (statistics.median(found["files"][largest]["first checkpoint"]) / 1000)
    return "\n".join([
        "# What checkpoints cost",
        "",
        f"Measured on {today} by `python -m bench.checkpoints`;"
        " [Durable threads](../durability.md) says what they are.",
        "",
        "Medians in milliseconds over HTTP, embedded boxes with the default limits and a disk of"
        " 2 GB, files of random bytes.",
        "",
        f"| | {' | '.join(heads)} |",
        f"| --- |{' --- |' * len(heads)}",
        *rows,
        "",
        f"File by file, the first checkpoint of {largest} MB is taken at {rate:.0f} MB/s. A resumed"
        " thread's time is that of the first answer, of `true`.",
        "",
        *machine.table(about),
    ])  # fmt: skip


def _shown(times: list[float] | None) -> str:
    if not times:
        return ""
    median = statistics.median(times)
    return f"{median:.1f}" if median < 10 else f"{median:.0f}"


if __name__ == "__main__":
    asyncio.run(main(tuple(map(int, sys.argv[1:])) or SIZES))
