"""Servers: in the loop of a test, and in a process that can be stopped and started again."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tests.contract.stand import make_runtime


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The url of an app on a real socket."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


class Server:
    """A server in a process of its own."""

    def __init__(self, runtime: str, state_dir: Path, settings: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self.name = f"integrations-{port}"
        foreign = ("SANDBOX_", "REDIS_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.env = {
            **own,
            "SANDBOX_RUNTIME": runtime,
            "SANDBOX_STATE_DIR": str(state_dir),
            "SANDBOX_WORKER_ID": self.name,
            "SANDBOX_PORT": str(port),
            "SANDBOX_POOL_SIZE": "1",
            "SANDBOX_MIN_POOL_SIZE": "0",
            "SANDBOX_MAX_POOL_SIZE": "2",
            **settings,
        }
        self._log = state_dir / f"{self.name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """It listens when this returns."""
        command = [str(Path(sys.executable).with_name("sandbox")), "serve", "--json"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=self.env, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert json.loads(line or "{}").get("url") == self.url, self._log.read_text()[-3000:]

    async def stop(self) -> None:
        """As an operator does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await self._process.wait()


@contextlib.asynccontextmanager
async def running(runtime: str, state_dir: Path, **settings: str) -> AsyncIterator[Server]:
    """A server; its boxes are gone afterwards."""
    server = Server(runtime, state_dir, settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        async with make_runtime(runtime, state_dir) as boxes:
            left = await boxes.boxes(server.name)
            await asyncio.gather(*(box.destroy() for box in left))
