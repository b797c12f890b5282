"""What a coordinator costs, and what further workers bring: a small fleet of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.contestants import WrongAnswer
from bench.fleet_redis import redis_server
from bench.measure import orders, time_ms
from sandbox_sdk.backends.remote import RemoteBackend, RemoteTenants
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.api.auth import SOLE_TENANT

DIRECT, HOP = "at the worker", "through a coordinator"
_KEY = "of-the-fleet"
_STOP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Effort:
    rounds: int = 20
    batch: int = 25
    workers: tuple[int, ...] = (1, 2, 3)
    callers: int = 12
    load_s: float = 15.0


SHORT = Effort(rounds=3, batch=10, workers=(1, 2), load_s=3.0)


@dataclass
class HopFindings:
    runtime: str
    callers: int
    cpu_ms: float = 0.0
    """Of the coordinator, for a command."""
    latency_ms: dict[str, list[float]] = field(default_factory=dict)
    per_second: dict[int, float] = field(default_factory=dict)
    """Commands, by the number of workers."""


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    def cpu_s(self) -> float:
        """Used so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def measure_hop(runtime: str, effort: Effort) -> HopFindings:
    found = HopFindings(runtime, effort.callers)
    for count in effort.workers:
        async with _fleet(runtime, workers=count) as (coordinator, workers):
            if count == effort.workers[0]:
                await _measure_latency(coordinator.url, workers[0].url, effort, found)
            await _measure_load(coordinator, effort, found, workers=count)
    return found


async def _measure_latency(
    coordinator: str, worker: str, effort: Effort, found: HopFindings
) -> None:
    """The same thread, asked in both ways by turns."""
    async with contextlib.AsyncExitStack() as stack:
        through = await stack.enter_async_context(RemoteBackend(coordinator))
        direct = RemoteTenants(worker, fleet_key=_KEY)
        stack.push_async_callback(direct.close)
        ways = {HOP: through, DIRECT: direct.of(SOLE_TENANT)}
        await through.execute(ExecuteRequest(thread_id="hop", command="x=hi"))
        for order in orders(list(ways), effort.rounds):
            for name in order:
                for number in range(effort.batch):
                    taken = await time_ms(lambda way=ways[name]: _command(way, "hop"))  # type: ignore[misc]
                    if number >= 3:
                        found.latency_ms.setdefault(name, []).append(taken)
        await through.cleanup(Target(thread_id="hop"))


async def _measure_load(
    coordinator: Server, effort: Effort, found: HopFindings, *, workers: int
) -> None:
    """As many callers as there are, each with a thread of its own."""
    done = 0
    async with RemoteBackend(coordinator.url) as client:
        threads = [f"load-{number}" for number in range(effort.callers)]
        for thread in threads:
            await client.execute(ExecuteRequest(thread_id=thread, command="x=hi"))
        until = time.monotonic() + effort.load_s

        async def caller(thread: str) -> None:
            nonlocal done
            while time.monotonic() < until:
                await _command(client, thread)
                done += 1

        began, cpu_s = time.monotonic(), coordinator.cpu_s()
        await asyncio.gather(*map(caller, threads))
        found.per_second[workers] = done / (time.monotonic() - began)
        found.cpu_ms = 1000 * (coordinator.cpu_s() - cpu_s) / done
        for thread in threads:
            await client.cleanup(Target(thread_id=thread))


async def _command(way: Sandboxes, thread: str) -> None:
    result = await way.execute(ExecuteRequest(thread_id=thread, command="echo $x"))
    if result.output != "hi\n":
        raise WrongAnswer(result.output)


@contextlib.asynccontextmanager
async def _fleet(runtime: str, *, workers: int) -> AsyncIterator[tuple[Server, Sequence[Server]]]:
    """A coordinator and its workers."""
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server())
        # Embedded boxes run as users of their own, who must be able to pass through.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fleet-"))
        os.chmod(folder, 0o711)
        started = [
            await stack.enter_async_context(
                _server("worker", redis, folder, SANDBOX_RUNTIME=runtime,
                        SANDBOX_WORKER_ID=f"{os.path.basename(folder)}-{number}")
            )
            for number in range(workers)
        ]  # fmt: skip
        coordinator = await stack.enter_async_context(_server("coordinator", redis, folder))
        yield coordinator, started


@contextlib.asynccontextmanager
async def _server(role: str, redis: str, folder: str, **settings: str) -> AsyncIterator[Server]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")},
        "SANDBOX_REDIS_URL": redis,
        "SANDBOX_FLEET_KEY": _KEY,
        "SANDBOX_GRACE": "1",  # For so long, and that of a lease, the first thread has to wait.
        "SANDBOX_STATE_DIR": folder,
        "SANDBOX_LOG_LEVEL": "error",
        "SANDBOX_DESTROY_ON_EXIT": "true",
        **settings,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandbox_server", "--role", role, "--port", "0", "--json",
        env=env, stdin=DEVNULL, stdout=PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = await process.stdout.readline()
        yield Server(json.loads(told)["url"], process.pid)
    finally:
        await _stopped(process)


async def _stopped(process: Process) -> None:
    """Asked to, so that it takes its boxes with it."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
