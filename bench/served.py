"""The service, in a process of its own and in ours."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench import results as r
from bench.contestants import WrongAnswer
from bench.stage import Stage
from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.main import open_service
from sandbox_server.settings import load

NAMES = {r.RUNC: "docker", r.BUBBLEWRAP: "bubblewrap", "kubernetes": "kubernetes"}
"""What the server calls the runtimes that are measured through it."""
PATIENCE_S = 120.0
_numbers = itertools.count(1)


class Server:
    """A server process. Its boxes go with it."""

    def __init__(self, process: Process, url: str, lag: Path, http: aiohttp.ClientSession) -> None:
        self.pid = process.pid
        self.url = url
        self._lag = lag
        self._http = http

    async def post(self, path: str, **body: object) -> dict[str, Any]:
        """A call without a client of ours. Raises WrongAnswer."""
        async with self._http.post(f"{self.url}{path}", json=body) as answer:
            if answer.status >= 300:
                raise WrongAnswer(await answer.text())
            return dict(await answer.json())

    def lag_ms(self) -> list[float]:
        """How late its event loop was, sample by sample, from its start on. Of one with samples."""
        return [float(line) for line in self._lag.read_text().split()]

    def memory_mb(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise LookupError("VmRSS")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def _settings(stage: Stage, runtime: str, pool: int, capacity: int | None) -> dict[str, str]:
    """capacity: None for what the server finds right."""
    owner = f"{stage.run_id}-{next(_numbers)}"
    stage.owners.append(owner)
    return {
        "SANDBOX_RUNTIME": NAMES[runtime],
        "SANDBOX_STATE_DIR": str(stage.state_dir),
        "SANDBOX_WORKER_ID": owner,
        "SANDBOX_POOL_SIZE": str(pool),
        "SANDBOX_MIN_POOL_SIZE": str(min(pool, 2)),
        "SANDBOX_MAX_POOL_SIZE": str(4 * pool),
        **({} if capacity is None else {"SANDBOX_MAX_SESSIONS": str(capacity)}),
        "SANDBOX_DESTROY_ON_EXIT": "1",
    }


@asynccontextmanager
async def server(
    stage: Stage, runtime: str, *, pool: int = 5, capacity: int | None = 250, lag: bool = False
) -> AsyncIterator[tuple[Server, RemoteBackend]]:
    """A server process, and a client of it. lag: it takes samples, which cost it 1 % of a core."""
    settings = _settings(stage, runtime, pool, capacity)
    port, name = free_port(), settings["SANDBOX_WORKER_ID"]
    samples = stage.state_dir / f"{name}.lag"
    with (stage.state_dir / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.server", *([str(samples)] if lag else []),
            env={**os.environ, **settings, "SANDBOX_PORT": str(port)},
            stdin=DEVNULL, stdout=DEVNULL, stderr=log,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        # The server closes connections that nobody has used for 5 s.
        connector = aiohttp.TCPConnector(keepalive_timeout=4)
        async with RemoteBackend(url) as client, aiohttp.ClientSession(connector=connector) as http:
            await ready(client, pool=pool)
            yield Server(process, url, samples, http), client
    finally:
        await _end(process)


@asynccontextmanager
async def service(stage: Stage, runtime: str, *, pool: int = 5) -> AsyncIterator[Sandboxes]:
    """The service without HTTP, in this process."""
    given = _settings(stage, runtime, pool, 250)
    settings = load(
        **{name.removeprefix("SANDBOX_").lower(): value for name, value in given.items()}
    )
    async with open_service(settings) as made:
        sandboxes = made.of(SOLE_TENANT)
        await ready(sandboxes, pool=pool)
        yield sandboxes


async def ready(sandboxes: Sandboxes, *, pool: int) -> None:
    """Returns when it answers and so many boxes wait."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if (await sandboxes.health()).pool_size >= pool:
                    return
            except RuntimeUnavailable:
                pass
            await asyncio.sleep(0.02)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
