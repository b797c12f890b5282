"""How far one Redis carries a fleet: the real registry, many workers and threads, and no boxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from bench.fleet_crew import GRACE_S, Timing
from bench.fleet_redis import Cost, Counters, redis_client, redis_server
from bench.processes import ended
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.store import Store

BEGIN, LOCATE, RESTORE, END, LIST = "begin", "locate", "restore", "end", "list"
PACED = "paced"
_READY_S = 600.0
_STEP_S = 3600.0
_LISTS = 20


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a fleet is played."""

    workers: int = 1000
    threads: int = 100_000
    crews: int = 2
    """Processes that play the workers."""
    lease_s: float = 10.0
    rest_s: float = 30.0


SMALL = Size(workers=40, threads=2000, rest_s=5.0)


@dataclass
class RegistryFindings:
    """What a fleet of that size asks of one Redis."""

    size: Size
    rest: Cost = field(default_factory=Cost)
    """A second in which nothing happens but that leases are renewed."""
    timings: dict[str, Timing] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    session_bytes: float = 0.0
    worker_bytes: float = 0.0
    """Its connections among it."""
    memory_mb: float = 0.0
    lost_leases: int = 0


async def measure_registry(size: Size) -> RegistryFindings:
    found = RegistryFindings(size)
    async with redis_server() as url, redis_client(url) as client:
        empty = await Counters.read(client)
        async with _crews(url, size) as crews:
            await _measure_rest(client, found)
            ready = await Counters.read(client)
            found.worker_bytes = (ready.memory - empty.memory) / size.workers
            for work in (BEGIN, LOCATE, f"{BEGIN} {PACED}", f"{LOCATE} {PACED}"):
                await _measure(client, crews, work, found)
            full = await Counters.read(client)
            found.memory_mb = full.memory / 1e6
            begun = found.timings[BEGIN].calls + found.timings[f"{BEGIN} {PACED}"].calls
            found.session_bytes = (full.memory - ready.memory) / begun
            await _measure_list(client, url, found)
            for work in (RESTORE, END):
                await _measure(client, crews, work, found)
            found.lost_leases = sum(int(told["gaps"]) for told in await _tell(crews, "gaps"))
    return found


async def _measure_rest(client: Redis, found: RegistryFindings) -> None:
    before = await Counters.read(client)
    await asyncio.sleep(found.size.rest_s)
    after = await Counters.read(client)
    found.rest = Cost.between(before, after, count=after.at - before.at)


async def _measure(client: Redis, crews: list[Process], work: str, found: RegistryFindings) -> None:
    before = await Counters.read(client)
    timings = [Timing(**told) for told in await _tell(crews, work)]
    after = await Counters.read(client)
    found.timings[work] = Timing(
        calls=sum(timing.calls for timing in timings),
        seconds=max(timing.seconds for timing in timings),
        p50_ms=max(timing.p50_ms for timing in timings),
        p99_ms=max(timing.p99_ms for timing in timings),
    )
    found.costs[work] = Cost.between(
        before, after, count=found.timings[work].calls, anyway=found.rest
    )


async def _measure_list(client: Redis, url: str, found: RegistryFindings) -> None:
    """A coordinator looks at all workers before it gives new threads to one or another."""
    size = found.size
    samples = []
    before = await Counters.read(client)
    began = time.perf_counter()
    for _ in range(_LISTS):
        store = Store.open(url)
        try:
            index = SessionIndex(store, lease_s=size.lease_s, grace_s=GRACE_S)
            directory = Directory(index, grace_s=GRACE_S)
            asked = time.perf_counter()
            workers = await directory.workers()
            samples.append(1000 * (time.perf_counter() - asked))
        finally:
            await store.close()
        if len(workers) != size.workers:
            raise RuntimeError(f"{len(workers)} workers are known instead of {size.workers}")
    after = await Counters.read(client)
    found.timings[LIST] = Timing.of(samples, time.perf_counter() - began)
    found.costs[LIST] = Cost.between(before, after, count=_LISTS, anyway=found.rest)


async def _tell(crews: list[Process], work: str) -> list[dict[str, Any]]:
    async def tell(crew: Process) -> dict[str, Any]:
        assert crew.stdin is not None
        crew.stdin.write(f"{work}\n".encode())
        return await _answer(crew, within_s=_STEP_S)

    return await asyncio.gather(*map(tell, crews))


async def _answer(crew: Process, *, within_s: float) -> dict[str, Any]:
    assert crew.stdout is not None
    line = await asyncio.wait_for(crew.stdout.readline(), within_s)
    if not line:
        raise RuntimeError("some of the workers have ended early")
    return dict(json.loads(line))


@contextlib.asynccontextmanager
async def _crews(url: str, size: Size) -> AsyncIterator[list[Process]]:
    async with contextlib.AsyncExitStack() as stack:
        crews = []
        for number in range(size.crews):
            crew = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.fleet_crew", url, f"worker-{number}",
                str(size.workers // size.crews), str(size.threads // size.workers),
                str(size.lease_s), stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
            stack.push_async_callback(ended, crew)
            crews.append(crew)
        await asyncio.gather(*(_answer(crew, within_s=_READY_S) for crew in crews))
        yield crews
