"""Many live sessions on one server: each of them answers, and the server stays small and prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench import results as r
from bench.contestants import WrongAnswer
from bench.measure import time_ms
from bench.results import Results
from bench.served import server
from bench.stage import Stage
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes

POOL = 5
ROUNDS = 3
AT_ONCE = 20


async def measure_crowd(stage: Stage, found: Results, *, count: int) -> None:
    if r.RUNC not in stage.runtimes:
        return
    async with server(stage, r.RUNC, pool=POOL, capacity=count + POOL, lag=True) as (at, client):
        found.add(r.CROWD_MEMORY, "with no session", at.memory_mb())
        slots = asyncio.Semaphore(AT_ONCE)
        took: list[float] = []

        async def turn(number: int, *, first: bool) -> None:
            async with slots:
                if first:
                    await client.create_session(CreateSessionRequest(thread_id=f"crowd-{number}"))
                took.append(await time_ms(lambda: _answers(client, number, first=first)))

        await asyncio.gather(*(turn(number, first=True) for number in range(count)))
        took.clear()
        before = len(at.lag_ms())
        for _ in range(ROUNDS):
            await asyncio.gather(*(turn(number, first=False) for number in range(count)))
        found.add(r.CROWD, f"{r.RUNC}, {AT_ONCE} at a time", *took)
        found.add(r.CROWD_LAG, r.RUNC, *at.lag_ms()[before:])
        found.add(r.CROWD_MEMORY, f"with {count} sessions", at.memory_mb())
        health = await client.health()
        for name, number in (
            ("live sessions", health.active_sessions),
            ("descriptors of the server", at.descriptors()),
            ("loop devices of the host", _loop_devices()),
        ):
            found.add(r.CROWD_COUNTS, name, number)


async def _answers(client: Sandboxes, number: int, *, first: bool) -> None:
    """Every session remembers its own number."""
    command = f"me={number}; echo $me" if first else "echo $me"
    result = await client.execute(ExecuteRequest(thread_id=f"crowd-{number}", command=command))
    if result.output != f"{number}\n":
        raise WrongAnswer(f"{result.output!r} instead of {number}")


def _loop_devices() -> int:
    return len(list(Path("/sys/block").glob("loop*/loop/backing_file")))
