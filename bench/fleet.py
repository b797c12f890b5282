"""How far one Redis carries a fleet: the real registry, many workers and threads, and no boxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import RedisError

from bench.fleet_crew import GRACE_S, Timing
from sandbox_server.fleet import Directory, SessionIndex, Store

_READY_S = 300.0
_STEP_S = 1800.0


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


@dataclass(frozen=True)
class Counters:
    """What a Redis tells of its work so far."""

    commands: float
    reads: float
    """How often it read from a connection: once for each question."""
    bytes_in: float
    bytes_out: float
    cpu_s: float
    memory: float
    at: float

    @classmethod
    async def read(cls, client: Redis) -> Counters:
        info = await client.info()
        return cls(
            commands=info["total_commands_processed"],
            reads=info["total_reads_processed"],
            bytes_in=info["total_net_input_bytes"],
            bytes_out=info["total_net_output_bytes"],
            cpu_s=info["used_cpu_user"] + info["used_cpu_sys"],
            memory=info["used_memory"],
            at=time.monotonic(),
        )


@dataclass(frozen=True)
class Cost:
    """What one call, or one second, costs Redis."""

    round_trips: float
    commands: float
    bytes_in: float
    bytes_out: float
    cpu_us: float

    @classmethod
    def between(
        cls, before: Counters, after: Counters, *, count: float, rest: Cost | None = None
    ) -> Cost:
        """`rest` is what a second costs anyway, while nothing is asked for."""
        seconds = after.at - before.at

        def each(gained: float, anyway: float) -> float:
            return max(gained - anyway * seconds, 0.0) / count

        idle = rest or cls(0, 0, 0, 0, 0)
        return cls(
            round_trips=each(after.reads - before.reads, idle.round_trips),
            commands=each(after.commands - before.commands, idle.commands),
            bytes_in=each(after.bytes_in - before.bytes_in, idle.bytes_in),
            bytes_out=each(after.bytes_out - before.bytes_out, idle.bytes_out),
            cpu_us=each(1e6 * (after.cpu_s - before.cpu_s), idle.cpu_us),
        )


@dataclass
class FleetFindings:
    """What a fleet of that size asks of one Redis."""

    size: Size
    rest: Cost = field(default_factory=lambda: Cost(0, 0, 0, 0, 0))
    """A second in which nothing happens but leases."""
    timings: dict[str, Timing] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    bytes_a_session: float = 0.0
    bytes_a_worker: float = 0.0
    memory_mb: float = 0.0
    gaps: int = 0
    """Leases that were lost and won again; none should be."""


async def measure_registry(size: Size) -> FleetFindings:
    found = FleetFindings(size)
    async with _redis() as url, _client(url) as client:
        empty = await Counters.read(client)
        async with _crews(url, size) as crews:
            full = await Counters.read(client)
            found.bytes_a_worker = (full.memory - empty.memory) / size.workers
            await _measure_rest(client, found)
            for work in ("begin", "locate", "begin paced", "locate paced"):
                await _measure(client, crews, work, found)
            crowded = await Counters.read(client)
            found.memory_mb = crowded.memory / 1e6
            sessions = size.threads + found.timings["begin paced"].calls
            found.bytes_a_session = (crowded.memory - full.memory) / sessions
            await _measure_placement(client, url, found)
            await _measure(client, crews, "end", found)
            found.gaps = sum(answer["gaps"] for answer in await _tell(crews, "rest"))
    return found


async def _measure_rest(client: Redis, found: FleetFindings) -> None:
    before = await Counters.read(client)
    await asyncio.sleep(found.size.rest_s)
    after = await Counters.read(client)
    found.rest = Cost.between(before, after, count=after.at - before.at)


async def _measure(client: Redis, crews: list[Process], work: str, found: FleetFindings) -> None:
    before = await Counters.read(client)
    timings = [Timing(**answer) for answer in await _tell(crews, work)]
    after = await Counters.read(client)
    calls = sum(timing.calls for timing in timings)
    found.timings[work] = Timing(
        calls,
        max(timing.seconds for timing in timings),
        max(timing.p50_ms for timing in timings),
        max(timing.p99_ms for timing in timings),
    )
    found.costs[work] = Cost.between(before, after, count=calls, rest=found.rest)


async def _measure_placement(client: Redis, url: str, found: FleetFindings) -> None:
    """A coordinator looks at all workers before it gives a new thread to one."""
    store = Store.open(url)
    index = SessionIndex(store, lease_s=found.size.lease_s, grace_s=GRACE_S)
    directory = Directory(index, grace_s=GRACE_S)
    samples = []
    before = await Counters.read(client)
    began = time.perf_counter()
    try:
        for _ in range(30):
            asked = time.perf_counter()
            workers = await directory.workers()
            samples.append(1000 * (time.perf_counter() - asked))
            assert len(workers) == found.size.workers, f"{len(workers)} workers are known"
    finally:
        await store.close()
    after = await Counters.read(client)
    found.timings["workers"] = Timing.of(samples, time.perf_counter() - began)
    found.costs["workers"] = Cost.between(before, after, count=len(samples), rest=found.rest)


async def _tell(crews: list[Process], work: str) -> list[dict[str, float]]:
    async def tell(crew: Process) -> dict[str, float]:
        assert crew.stdin is not None
        crew.stdin.write(f"{work}\n".encode())
        return await _answer(crew, within_s=_STEP_S)

    return await asyncio.gather(*map(tell, crews))


async def _answer(crew: Process, *, within_s: float) -> dict[str, float]:
    assert crew.stdout is not None
    line = await asyncio.wait_for(crew.stdout.readline(), within_s)
    if not line:
        raise RuntimeError("a crew has ended early")
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
            stack.push_async_callback(_ended, crew)
            crews.append(crew)
        await asyncio.gather(*(_answer(crew, within_s=_READY_S) for crew in crews))
        yield crews


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _redis() -> AsyncIterator[str]:
    """A Redis of our own on a free port, with the persistence that a fleet should have."""
    program = os.environ.get("SANDBOX_TEST_REDIS") or shutil.which("redis-server")
    if program is None:
        raise RuntimeError("no redis-server on this machine")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as folder:
        process = await asyncio.create_subprocess_exec(
            program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder,
            "--appendonly", "yes", "--save", "", stdout=DEVNULL,
        )  # fmt: skip
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            await _ended(process)


@contextlib.asynccontextmanager
async def _client(url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(url) as client:
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                await client.ping()
                break
            except RedisError:
                assert time.monotonic() < deadline, "Redis did not start"
                await asyncio.sleep(0.05)
        yield client
