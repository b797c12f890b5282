"""Many sessions on one worker: how fast they come, what they cost while idle, and that each
answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from bench import cpu
from bench import results as r
from bench.contestants import WrongAnswer
from bench.load import has_hey, hey_rate
from bench.measure import time_ms
from bench.memory import available_mb, family, pss_mb
from bench.results import Results
from bench.served import Server, server
from bench.stage import Stage
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.bubblewrap.state import Record, StateFolder

POOL = 5
AT_ONCE = 20
IDLE_S = 20.0
SAMPLED = 20
"""Of so many boxes, the memory of one is looked at."""


async def measure_density(stage: Stage, found: Results, *, arrivals: int, count: int) -> None:
    """Embedded boxes: an engine ends long before 2,000 containers."""
    if r.BUBBLEWRAP not in stage.runtimes:
        return
    if has_hey():
        # As it comes: the most sessions a server takes follows from the machine.
        async with server(stage, r.BUBBLEWRAP, capacity=None) as (at, _):
            name = r.over_http(r.BUBBLEWRAP)
            rate, failed = await hey_rate(
                at, [("/create_session", "{}")], requests=arrivals, at_once=r.ARRIVALS_AT_ONCE
            )
            found.add(r.ARRIVAL, name, rate)
            found.add(r.FAILED, f"{name}, arrivals", failed)
    before = await available_mb()
    async with server(stage, r.BUBBLEWRAP, pool=POOL, capacity=count + POOL) as (at, client):
        failed = await _each(client, found, count, first=True)
        during = await available_mb()
        boxes = [family(record.keeper) for record in StateFolder(stage.state_dir).records()]
        found.add(r.DENSE_IDLE, "the server and all boxes", 100 * await _idle_share(at, boxes))
        if before is not None and during is not None:
            found.add(r.DENSE_MEMORY, "each session, with all that the host gave up",
                      (before - during) / count)  # fmt: skip
        shares = map(_share_mb, StateFolder(stage.state_dir).records()[::SAMPLED])
        found.add(r.DENSE_MEMORY, "each session, its processes", *shares)
        found.add(r.DENSE_MEMORY, "the server", at.memory_mb())
        failed += await _each(client, found, count, first=False)
        found.add(r.FAILED, f"{count} sessions", failed)


def _share_mb(box: Record) -> float:
    """Of the processes of a box. Its spare shell may end meanwhile."""
    whole = 0.0
    for each in family(box.keeper):
        with contextlib.suppress(OSError):
            whole += pss_mb(each.pid)
    return whole


async def _idle_share(server: Server, boxes: list[list[Process]]) -> float:
    """Of one core, while nothing is asked."""
    pids = [server.pid, *(each.pid for box in boxes for each in box)]
    before, began = _cpu_s(pids), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    after, took_s = _cpu_s(pids), time.perf_counter() - began
    return sum(after[pid] - before[pid] for pid in after if pid in before) / took_s


def _cpu_s(pids: list[int]) -> dict[int, float]:
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # It has ended.
            found[pid] = cpu.of_threads(pid)
    return found


async def _each(client: Sandboxes, found: Results, count: int, *, first: bool) -> int:
    """A command in every session, which are made first; how many failed."""
    slots = asyncio.Semaphore(AT_ONCE)
    took: list[float] = []
    failed = 0

    async def turn(number: int) -> None:
        nonlocal failed
        async with slots:
            try:
                if first:
                    await client.create_session(CreateSessionRequest(thread_id=f"dense-{number}"))
                took.append(await time_ms(lambda: _answers(client, number, first=first)))
            except (SandboxError, WrongAnswer) as exc:
                failed += 1
                print(f"bench: session {number} failed: {exc}", file=sys.stderr)

    await asyncio.gather(*map(turn, range(count)))
    if not first:
        found.add(r.DENSE_CALLS, f"{r.over_http(r.BUBBLEWRAP)}", *took)
    return failed


async def _answers(client: Sandboxes, number: int, *, first: bool) -> None:
    """Every session remembers its own number."""
    command = f"me={number}; echo $me" if first else "echo $me"
    result = await client.execute(ExecuteRequest(thread_id=f"dense-{number}", command=command))
    if result.output != f"{number}\n":
        raise WrongAnswer(f"{result.output!r} instead of {number}")
