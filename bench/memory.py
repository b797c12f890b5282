"""What an idle box costs. Connected, one command behind it, the next shell waiting."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiodocker.containers import DockerContainer

from bench import results as r
from bench.measure import orders, settled
from bench.results import Results
from bench.stage import Stage
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.bubblewrap.state import Record, StateFolder
from sandbox_server.runtime.docker.config import container_name
from sandbox_server.runtime.docker.runtime import DockerBox

_SAMPLES = 8
_EVERY_S = 0.25
_WITHIN_MB = 2.0
_PATIENCE_S = 10.0
_DRIFT_MB = 1.0
"""How far off, for each box, the machine may be in the end."""


async def measure_memory(stage: Stage, found: Results, *, rounds: int, count: int) -> None:
    names = [*([r.CONTAINER] if stage.docker else []), *stage.runtimes]
    for name in names:  # What all boxes of a kind share is in memory from here on.
        await _crowd(stage, name, 1)
    for order in orders(names, rounds):
        for name in order:
            label = r.CONTAINER if name == r.CONTAINER else r.box(name)
            before = await available_mb()
            during, used = await _crowd(stage, name, count)
            after = await available_mb()
            found.add(r.MEMORY_BOX, label, *used)
            if (given_up := each_mb(before, during, after, count=count)) is not None:
                found.add(r.MEMORY_HOST, label, given_up)


def each_mb(
    before: float | None, during: float | None, after: float | None, *, count: int
) -> float | None:
    """What each of so many has cost the host. None where the machine was not at rest, or did not
    come back to where it was: somebody else has taken or given back memory meanwhile."""
    if before is None or during is None or after is None:
        return None
    if abs(before - after) > _DRIFT_MB * count:
        return None
    return ((before + after) / 2 - during) / count


async def _crowd(stage: Stage, name: str, count: int) -> tuple[float | None, list[float]]:
    """What the host has left when there are so many of a kind, and what each of them uses."""
    async with AsyncExitStack() as stack:
        if name == r.CONTAINER:
            made = [await stack.enter_async_context(stage.container()) for _ in range(count)]
            return await available_mb(), await asyncio.gather(*map(_of_container, made))
        boxes = [await _idle_box(stage, name, stack) for _ in range(count)]
        left = await available_mb()
        return left, await asyncio.gather(*(_of_box(stage, box) for box in boxes))


async def _idle_box(stage: Stage, runtime: str, stack: AsyncExitStack) -> Box:
    box, client = await stack.enter_async_context(stage.box(runtime))
    await client.run("true")
    return box


async def _of_box(stage: Stage, box: Box) -> float:
    if stage.docker is not None and isinstance(box, DockerBox):
        return await _of_container(stage.docker.containers.container(container_name(box.id)))
    return _of_embedded(stage.state_dir, box)


async def _of_container(container: DockerContainer) -> float:
    (stats,) = await container.stats(stream=False)
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
    return sum(pss_mb(process.pid) for process in family(record.keeper))


def family(process: Process) -> list[Process]:
    return [process, *(below for child in process.children() for below in family(child))]


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


async def available_mb() -> float | None:
    """The machine's free memory, when it has come to rest; None where it does not."""
    samples: list[float] = []
    for _ in range(round(_PATIENCE_S / _EVERY_S)):
        await asyncio.sleep(_EVERY_S)
        samples.append(_meminfo_mb("MemAvailable"))
        if settled(samples, count=_SAMPLES, within=_WITHIN_MB):
            return statistics.median(samples[-_SAMPLES:])
    return None


def _meminfo_mb(name: str) -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(name)


def total_mb() -> float:
    return _meminfo_mb("MemTotal")
