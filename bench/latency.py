"""How long a command takes, and how long a box takes from nothing to its first answer."""

from __future__ import annotations

import asyncio

from bench import processes
from bench import results as r
from bench.contestants import Command, commands
from bench.measure import orders, time_ms
from bench.results import Results, Section
from bench.stage import Stage

PAUSE_S = 0.02
_WARM_UP = 3
"""Commands before those that count, every time it is a contestant's turn."""


async def measure_commands(stage: Stage, found: Results, *, rounds: int, batch: int) -> None:
    """Contestants take turns, so that a noisy moment of the machine hits all alike."""
    async with commands(stage) as contestants:
        for section, pause_s in ((r.TIGHT, 0.0), (r.PACED, PAUSE_S)):
            for order in orders(list(contestants), rounds):
                for name in order:
                    await take_turn(found, section, name, contestants[name], batch, pause_s)


async def take_turn(
    found: Results, section: Section, name: str, command: Command, batch: int, pause_s: float
) -> None:
    for number in range(_WARM_UP + batch):
        if pause_s:
            await asyncio.sleep(pause_s)
        took_ms = await time_ms(command)
        if number >= _WARM_UP:
            found.add(section, name, took_ms)


async def measure_starts(stage: Stage, found: Results, *, count: int) -> None:
    names = [*([r.RUN] if stage.docker else []), *stage.runtimes]
    for runtime in stage.runtimes:  # The first of all pays for images and the like.
        await _start_box(stage, runtime)
    for order in orders(names, count):
        for name in order:
            if name == r.RUN:
                found.add(r.START, r.RUN, await _docker_run(stage))
            else:
                found.add(r.START, r.box(name), await _start_box(stage, name))


async def _start_box(stage: Stage, runtime: str) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with stage.made_box(runtime) as box, box.agent() as client:
        await client.run("echo hi")
        return 1000 * (loop.time() - start)


async def _docker_run(stage: Stage) -> float:
    """Until the first line is there; the end of the container is not counted."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with processes.started(*stage.run_arguments(), "bash", "-c", "echo hi") as process:
        assert process.stdout is not None
        await process.stdout.readline()
        took_ms = 1000 * (loop.time() - start)
        await process.wait()
        return took_ms
