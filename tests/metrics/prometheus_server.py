"""A real Prometheus of a test's own, and its promtool."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def program(name: str) -> str:
    """Skips where there is none: the end of the run says so."""
    folder = os.environ.get("SANDBOX_TEST_PROMETHEUS", "")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    if found is None:
        pytest.skip("prometheus: no prometheus and promtool (apt-get install prometheus)")
    return found


def promtool(*arguments: str, stdin: bytes = b"", cwd: Path = ROOT) -> str:
    """What it says; fails the test if it finds something."""
    done = subprocess.run(
        [program("promtool"), *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


class PrometheusServer:
    """Scrapes every second."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self._folder = folder
        self._targets = targets
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://127.0.0.1:{free_port()}"

    async def __aenter__(self) -> "PrometheusServer":
        folder = self._folder
        folder.mkdir()
        scrape = {"job_name": "sandbox", "static_configs": [{"targets": self._targets}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with (folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                stdout=log,
                stderr=log,
            )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._process is not None
        self._process.terminate()
        await self._process.wait()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Fails the test if Prometheus does not accept it."""
        async with httpx.AsyncClient(base_url=self.url) as http:
            answer = await http.get("/api/v1/query", params={"query": expression})
        assert answer.status_code == 200, (expression, answer.text)
        return list(answer.json()["data"]["result"])

    async def until(self, expression: str, value: float) -> None:
        """Returns when it has scraped what makes an expression at least this."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_ready():
                await asyncio.sleep(0.1)
            while True:
                found = await self.query(expression)
                if found and float(found[0]["value"][1]) >= value:
                    return
                await asyncio.sleep(0.1)

    async def _is_ready(self) -> bool:
        async with httpx.AsyncClient(base_url=self.url) as http:
            try:
                return (await http.get("/-/ready")).is_success
            except httpx.TransportError:
                return False
