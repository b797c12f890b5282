"""What an idle box costs. Connected, one command behind it, the next shell waiting."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiodocker

from bench import results as r
from bench.measure import settled
from bench.results import Results
from bench.stage import Stage
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.bubblewrap.state import Record, StateFolder
from sandbox_server.runtime.docker.config import container_name

_SAMPLES = 8
_EVERY_S = 0.25
_WITHIN_MB = 1.0
_PATIENCE_S = 20.0


async def measure_memory(stage: Stage, found: Results, *, count: int) -> None:
    if stage.docker is not None:
        await _containers(stage, stage.docker, found, count)
    for runtime in stage.runtimes:
        await _boxes(stage, runtime, found, count)


async def _containers(stage: Stage, docker: aiodocker.Docker, found: Results, count: int) -> None:
    before = await _available_mb()
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(stage.container()) for _ in range(count)]
        found.add(r.MEMORY_HOST, r.CONTAINER, (before - await _available_mb()) / count)
        used = [await _of_container(docker, container.id) for container in made]
        found.add(r.MEMORY_BOX, r.CONTAINER, *used)


async def _boxes(stage: Stage, runtime: str, found: Results, count: int) -> None:
    async with stage.box(runtime) as (_, client):
        await client.run("true")  # What is shared by all boxes is in memory from here on.
    before = await _available_mb()
    async with AsyncExitStack() as stack:
        made: list[Box] = []
        for _ in range(count):
            box, client = await stack.enter_async_context(stage.box(runtime))
            await client.run("true")
            made.append(box)
        found.add(r.MEMORY_HOST, r.box(runtime), (before - await _available_mb()) / count)
        for box in made:
            if stage.docker is not None and box.runtime == "docker":
                used = await _of_container(stage.docker, container_name(box.id))
            else:
                used = _of_embedded(stage.state_dir, box)
            found.add(r.MEMORY_BOX, r.box(runtime), used)


async def _of_container(docker: aiodocker.Docker, name: str) -> float:
    (stats,) = await docker.containers.container(name).stats(stream=False)
    return used_mb(stats["memory_stats"])


def used_mb(memory_stats: Mapping[str, Any]) -> float:
    """As `docker stats` counts: without file pages that can be dropped at once."""
    details = memory_stats.get("stats", {})
    droppable = details.get("total_inactive_file", details.get("inactive_file", 0))
    return float(memory_stats["usage"] - droppable) / 1e6


def _of_embedded(state_dir: Path, box: Box) -> float:
    """The proportional share of the keeper and everything below it."""
    record = Record.read(StateFolder(state_dir).folder(box.id))
    assert record is not None, "the box lives"
    return sum(_pss_mb(process.pid) for process in _family(record.keeper))


def _family(process: Process) -> list[Process]:
    return [process, *(below for child in process.children() for below in _family(child))]


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


async def _available_mb() -> float:
    """The machine's free memory, when it has come to rest."""
    samples: list[float] = []
    for _ in range(round(_PATIENCE_S / _EVERY_S)):
        await asyncio.sleep(_EVERY_S)
        samples.append(_meminfo_mb("MemAvailable"))
        if settled(samples, count=_SAMPLES, within=_WITHIN_MB):
            break
    return statistics.median(samples[-_SAMPLES:])


def _meminfo_mb(name: str) -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(name)


def total_mb() -> float:
    return _meminfo_mb("MemTotal")
