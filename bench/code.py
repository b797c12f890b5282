"""What a run of code costs over HTTP: warm, for the first time, and in memory.

python -m bench.code [RUNS]; writes docs/benchmarks/code.md.

Beside it a command, in turns, on the same server: embedded boxes with the default limits. The HTTP
server is this process, as the client is.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import uvicorn

from bench import machine
from bench.measure import percentile
from sandbox_sdk import AsyncSandboxClient, RemoteBackend
from sandbox_sdk.protocol.models import Limits
from sandbox_server import logs
from sandbox_server.api.app import create_app
from sandbox_server.api.server import bound, url_of
from sandbox_server.environments.catalogue import open_builds
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.registry.environments import Kernels
from sandbox_server.registry.folder import read_registry
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.worker import Worker

LIMITS = Limits(
    memory_bytes=512 << 20, cpus=0.5, pids=256, disk_bytes=1 << 30, command_timeout_s=30,
    output_limit_bytes=1 << 20, upload_limit_bytes=8 << 20, network="none",
)  # fmt: skip


PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "code.md"
Row = tuple[str, str, str]
"""What was measured, what was found, and what is wanted."""


async def main(runs: int) -> None:
    about = machine.host()
    with tempfile.TemporaryDirectory(prefix="bench-code-") as folder:
        os.chmod(folder, 0o711)
        rows = await _measured(Path(folder), runs)
    page = _page(rows, about, runs)
    print(page)
    PAGE.write_text(page)


async def _measured(state: Path, runs: int) -> list[Row]:
    async with _server(state, Kernels()) as url, RemoteBackend(url, nearby=True) as backend:
        rows = await _warm_runs(backend, runs)
        first = await _first_ms(backend)
        rows.append(("first run of a session, no kernel started ahead", f"{first:.0f} ms", ""))
    async with (
        _server(state, Kernels(warm=("python",))) as url,
        RemoteBackend(url, nearby=True) as backend,
    ):
        firsts = []
        for _ in range(5):
            await asyncio.sleep(3.0)  # The pool makes the next box, and its kernel gets ready.
            firsts.append(await _first_ms(backend))
    told = f"p50 {percentile(firsts, 50):.0f} ms"
    rows.append(("first run of a session, a kernel started ahead", told, "at most 150 ms"))
    return rows


async def _warm_runs(backend: RemoteBackend, runs: int) -> list[Row]:
    times: dict[str, list[float]] = {"run_code('1+1')": [], "execute('true')": []}
    async with AsyncSandboxClient(backend=backend) as sandbox:
        await sandbox.run_code("1+1")
        for _ in range(runs):
            began = time.perf_counter()
            await sandbox.run_code("1+1")
            middle = time.perf_counter()
            await sandbox.execute("true")
            times["run_code('1+1')"].append(1000 * (middle - began))
            times["execute('true')"].append(1000 * (time.perf_counter() - middle))
            await asyncio.sleep(0.02)  # Half a core is what a box has: back to back it would wait.
        (context,) = await sandbox.contexts()
        usage = (await sandbox.session()).usage
    rows = [
        (f"`{name}`", f"p50 {percentile(each, 50):.1f} ms, p95 {percentile(each, 95):.1f} ms", goal)
        for (name, each), goal in zip(times.items(), ("at most 8 ms", ""), strict=True)
    ]
    memory = {"a kernel, resident": context.memory_bytes, "a box with one": usage.memory_bytes}
    rows += [(f"memory of {name}", f"{(b or 0) / 1e6:.0f} MB", "") for name, b in memory.items()]
    return rows


def _page(rows: list[Row], about: dict[str, str], runs: int) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return "\n".join([
        "# What a run of code costs",
        "",
        f"Measured on {today} by `python -m bench.code`; [code.md](../code.md) says what a run is.",
        "",
        "| over HTTP, embedded boxes with the default limits | | wanted |",
        "| --- | --- | --- |",
        *(f"| {name} | {found} | {goal} |" for name, found, goal in rows),
        "",
        f"{runs} runs and commands in turns, 20 ms apart, by a caller in the server's process.",
        "",
        *machine.table(about),
    ])  # fmt: skip


async def _first_ms(backend: RemoteBackend) -> float:
    """From a session that is there to the answer of its first run."""
    async with AsyncSandboxClient(backend=backend) as sandbox:
        await sandbox.create_session()
        began = time.perf_counter()
        await sandbox.run_code("1+1")
        return 1000 * (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def _server(state: Path, kernels: Kernels) -> AsyncIterator[str]:
    owner = f"bench-code-{uuid.uuid4().hex[:8]}"
    warm = 1 if kernels.warm else 0
    environment = read_registry(None).environments["Python3"]
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(BubblewrapRuntime(state_dir=state))
        builds = await stack.enter_async_context(open_builds(runtime, state))
        spec = await builds.build(environment, BoxSpec(owner=owner), lambda _line: None)
        registry = SqliteRegistry(worker=owner)
        stack.push_async_callback(registry.close)
        lease = LoneLease(owner, 1)
        worker = Worker(
            runtime, replace(spec, kernels=kernels), registry, lease,
            pool=PoolSettings(size=warm, min_size=warm, max_size=warm), environments=dict,
            idle_timeout_s=600, capacity=5, destroy_on_exit=True, tick_s=0.2,
        )  # fmt: skip
        await stack.enter_async_context(worker)
        await lease.serve(load=worker.load, on_gap=worker.table.vouch)
        facts = ServiceFacts(worker_id=owner, runtime=runtime.name, limits=LIMITS)
        service = SandboxService(worker.table, facts, health=worker.health)
        yield await stack.enter_async_context(_served(service))


@contextlib.asynccontextmanager
async def _served(service: SandboxService) -> AsyncIterator[str]:
    config = uvicorn.Config(create_app(service), log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with bound("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            await serving


if __name__ == "__main__":
    logs.configure(form="auto", level="error")
    asyncio.run(main(int([*sys.argv, "200"][1])))
