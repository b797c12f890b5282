"""Some of a fleet's workers in one process: real leases, registry and index, and no boxes.

`python -m bench.fleet_crew URL CREW WORKERS THREADS LEASE_S`: told on stdin what to do, a line for
each task, it answers with a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from bench.measure import percentile
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import Target
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Phase, Worker
from sandbox_server.sessions.lease import Load
from sandbox_server.sessions.registry import Record, Status

TENANT = "bench"
GRACE_S = 20.0
_AT_ONCE = 16
"""How many callers a crew has, when everything is to go as fast as it can."""
_PACE = 100
"""Calls a second of a crew, when there is to be no crowd."""
_PACED = 2000
_SAMPLED = 10
"""All sessions are begun; one in so many is found, vouched for and ended."""


@dataclass(frozen=True)
class Timing:
    """How long many calls of one kind took."""

    calls: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, samples_ms: list[float], seconds: float) -> Timing:
        return cls(len(samples_ms), seconds, percentile(samples_ms, 50), percentile(samples_ms, 99))


class Member:
    """A worker, as far as Redis can tell."""

    def __init__(self, url: str, name: str, threads: int, *, lease_s: float, folder: Path) -> None:
        self.name = name
        self.store = Store.open(url)
        card = Worker(
            id=name, url=f"http://{name}.workers.internal:5000", capacity=threads + 100,
            phase=Phase.STARTING, version="0.1.0", runtime="docker",
        )  # fmt: skip
        self.lease = RedisLease(
            self.store, card, lease_s=lease_s, state_dir=folder, stop=lambda: None
        )
        self.index = SessionIndex(self.store, lease_s=lease_s, grace_s=GRACE_S)
        self.registry = RedisRegistry(self.index, self.lease)
        self.directory = Directory(self.index, grace_s=GRACE_S)
        self.records: dict[str, Record] = {}
        self.gaps = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        try:
            async with self.lease:
                await self.lease.serve(load=self._load, on_gap=self._gap)
                yield
        finally:
            await self.store.close()

    def _load(self) -> Load:
        return Load(sessions=len(self.records), warm=2)

    async def _gap(self) -> None:
        self.gaps += 1

    async def begin(self, thread_id: str) -> None:
        """What Redis is asked when a thread gets its session."""
        before = await self.registry.predecessor(TENANT, thread_id)
        record = Record(
            tenant=TENANT, thread_id=thread_id, generation=1, session_id=str(uuid.uuid4()),
            box_id=uuid.uuid4().hex[:16], status=Status.LIVE, created_at=time.time(),
            worker=self.name, epoch=self.lease.epoch,
        )  # fmt: skip
        await self.registry.begin(record, before=before)
        self.records[thread_id] = record

    async def locate(self, thread_id: str) -> None:
        """What a coordinator asks before each call."""
        where = await self.directory.locate(TENANT, Target(thread_id=thread_id))
        assert where.worker is not None, f"{thread_id} is nowhere"

    async def restore(self, thread_id: str) -> None:
        """What a worker tells a Redis that may have forgotten."""
        assert await self.registry.restore(self.records[thread_id]), f"{thread_id} is another's"

    async def end(self, thread_id: str) -> None:
        await self.registry.end(self.records.pop(thread_id), Status.CLEANED)


Step = Callable[[], Awaitable[None]]


class TaskSet:
    def __init__(self, members: list[Member], threads: int) -> None:
        self._members = members
        self._threads = threads
        self._paced = 0
        self._chance = random.Random(1)

    async def do(self, what: str) -> dict[str, float]:
        if what == "gaps":
            return {"gaps": sum(member.gaps for member in self._members)}
        work, _, pace = what.partition(" ")
        steps = list(self._steps(work, paced=bool(pace)))
        self._chance.shuffle(steps)
        timed = await (_paced(steps) if pace else _crowded(steps))
        return asdict(timed)

    def _steps(self, work: str, *, paced: bool) -> Iterator[Step]:
        if paced:
            self._paced += 1
        each = _PACED // len(self._members) if paced else self._threads
        if work != "begin" and not paced:
            each = max(each // _SAMPLED, 1)
        for member in self._members:
            for number in range(each):
                old = f"{member.name}-{number % self._threads}"
                new = f"{old}-{self._paced}-{number}"
                yield _step(getattr(member, work), new if paced and work == "begin" else old)


def _step(method: Callable[[str], Awaitable[None]], thread: str) -> Step:
    return lambda: method(thread)


async def _crowded(steps: list[Step]) -> Timing:
    """All of them, as fast as it goes."""
    left = iter(steps)
    samples: list[float] = []

    async def caller() -> None:
        for step in left:
            samples.append(await _timed(step))

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(_AT_ONCE)))
    return Timing.of(samples, time.perf_counter() - began)


async def _paced(steps: list[Step]) -> Timing:
    """One after the other at a steady pace, whether the one before is done or not."""
    began = time.perf_counter()
    running = []
    for number, step in enumerate(steps):
        await asyncio.sleep(began + number / _PACE - time.perf_counter())
        running.append(asyncio.create_task(_timed(step)))
    samples = await asyncio.gather(*running)
    return Timing.of(samples, time.perf_counter() - began)


async def _timed(step: Step) -> float:
    began = time.perf_counter()
    await step()
    return 1000 * (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def _crew(
    url: str, crew: str, workers: int, threads: int, lease_s: float
) -> AsyncIterator[TaskSet]:
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            members = [
                Member(url, f"{crew}-{n}", threads, lease_s=lease_s, folder=Path(folder))
                for n in range(workers)
            ]
            for member in members:
                await stack.enter_async_context(member.serving())
            await _believed(members[0].index)
            yield TaskSet(members, threads)


async def _believed(index: SessionIndex) -> None:
    """A Redis that was just started may have forgotten something, for all that is known."""
    while True:
        with contextlib.suppress(RuntimeUnavailable):
            return await index.make_sure()
        await asyncio.sleep(0.2)


async def main(url: str, crew: str, workers: str, threads: str, lease_s: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    async with _crew(url, crew, int(workers), int(threads), float(lease_s)) as members:
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await members.do(line.strip())), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
