"""The server as users run it: a process that can be stopped, killed and started again."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI

from tests import preloaded
from tests.contract.conftest import make_runtime
from tests.ports import free_port
from tests.preloaded import PreloadedProcess
from tests.run import run_owner

PATIENCE_S = 60.0
_MOST_PROCESSES = 4


class ServerProcess:
    """Started again, it has the same name and so the same boxes."""

    def __init__(self, runtime: str, state_dir: Path, settings: dict[str, str]) -> None:
        self.port = free_port()
        self.name = run_owner(f"server-{self.port}")
        self.runtime = runtime
        self._log = state_dir / f"{self.name}.log"
        self._output = state_dir / f"{self.name}.out"
        self.settings = {
            "SANDBOX_RUNTIME": runtime,
            "SANDBOX_STATE_DIR": str(state_dir),
            "SANDBOX_WORKER_ID": self.name,
            "SANDBOX_PORT": str(self.port),
            "SANDBOX_POOL_SIZE": "1",
            "SANDBOX_MIN_POOL_SIZE": "0",
            "SANDBOX_MAX_POOL_SIZE": "2",
            **settings,
        }
        self._process: asyncio.subprocess.Process | PreloadedProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def children(self) -> list[int]:
        """Its processes, where it has several, in the order they were started."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def owners(self) -> list[str]:
        """The labels its boxes may have."""
        count = _MOST_PROCESSES if "SANDBOX_PROCESSES" in self.settings else 0
        return [self.name, *(f"{self.name}~{index}" for index in range(count))]

    async def start(self) -> None:
        args, env = ["--json"], {**os.environ, **self.settings}  # No greeting in the log.
        with self._log.open("ab") as log, self._output.open("ab") as output:
            if preloaded.is_possible(env):
                self._process = preloaded.start_server(args, env, stdout=output, stderr=log)
                return
            program = (sys.executable, "-m", "sandbox_server", *args)
            self._process = await asyncio.create_subprocess_exec(
                *program, env=env, stdout=output, stderr=log
            )

    async def ready(self) -> None:
        """Returns when it answers."""
        deadline = time.monotonic() + PATIENCE_S
        async with httpx.AsyncClient(base_url=self.url) as http:
            while True:
                try:
                    await http.get("/health")
                    return
                except httpx.TransportError:
                    assert time.monotonic() < deadline, self.log()
                    assert self._process is not None
                    code = self._process.returncode
                    assert code is None, f"{code}: {self._output.read_text()}{self.log()}"
                    await asyncio.sleep(0.05)

    async def healthy(self) -> None:
        """Returns when all of its processes answer."""
        await self.ready()
        async with httpx.AsyncClient(base_url=self.url) as http, asyncio.timeout(PATIENCE_S):
            while (await http.get("/health")).json()["status"] != "healthy":
                await asyncio.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, when it has ended by itself."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), PATIENCE_S)

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()

    def log(self) -> str:
        """The end of what it said."""
        return self._log.read_text()[-3000:]

    def lines(self) -> list[str]:
        """All it said."""
        return self._log.read_text().splitlines()


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The url of an app on a real socket, in the loop of a test."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def running(runtime: str, state_dir: Path, **settings: str) -> AsyncIterator[ServerProcess]:
    """A server process, which goes in the end with all its boxes."""
    server = ServerProcess(runtime, state_dir, settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        async with make_runtime(runtime, state_dir) as boxes:
            for owner in server.owners():
                left = await boxes.boxes(owner)
                await asyncio.gather(*(box.destroy() for box in left))
