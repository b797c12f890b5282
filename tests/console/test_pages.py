"""The files of the console and its stream, over HTTP."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_sdk.testing import FakeBackend
from sandbox_server.main import make_app
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES
from tests.fleet.fleet import running_fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import running, served
from tests.tenants import Fakes


@asynccontextmanager
async def console(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A server on fakes, as its composition root makes it."""
    app = make_app(Fakes(FakeBackend()), load(**settings))
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


async def stream(http: httpx.AsyncClient) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of the live list."""
    async with http.stream("GET", "/console/sessions", timeout=60) as answer:
        assert answer.status_code == 200, await answer.aread()
        event = ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                yield event, json.loads(value)


async def test_the_page_and_its_files() -> None:
    async with console() as http:
        moved = await http.get("/console")
        assert (moved.status_code, moved.headers["location"]) == (307, "console/")
        page = await http.get("/console/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-cache"
        (script,) = [part for part in page.text.split('"') if part.startswith("app.js?v=")]
        assert "<script>" not in page.text
        assert "style=" not in page.text
        found = await http.get(f"/console/{script}")
        assert found.headers["content-type"].startswith("text/javascript")
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["content-encoding"] == "gzip"
        known = {"If-None-Match": found.headers["etag"]}
        assert (await http.get("/console/app.js", headers=known)).status_code == 304
        other = await http.get("/console/app.js?v=0123")
        assert other.headers["cache-control"] == "no-cache"
        assert (await http.get("/console/../main.py")).status_code == 404
        assert (await http.get("/console/nothing")).status_code == 404


async def test_pages_are_guarded() -> None:
    async with console() as http:
        for path in ("/console", "/console/", "/console/app.js", "/console/nothing"):
            headers = (await http.get(path)).headers
            policy = dict(
                part.split(" ", 1) for part in headers["content-security-policy"].split("; ")
            )
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert policy["trusted-types"] == "'none'"
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"


async def test_it_can_be_switched_off() -> None:
    async with console(console=False) as http:
        for path in ("/console", "/console/", "/console/sessions"):
            assert (await http.get(path)).status_code == 404


async def test_the_stream_needs_a_key() -> None:
    async with console(api_keys="acme:secret") as http:
        assert (await http.get("/console/")).status_code == 200, "it has to ask for the key"
        refused = await http.get("/console/sessions")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
        http.headers["x-api-key"] = "secret"
        async with aclosing(stream(http)) as events:  # type: ignore[type-var]
            assert (await anext(events))[0] == "sessions"


async def test_it_works_alike_on_several_processes_and_stops_at_once(state_dir: Path) -> None:
    if "bubblewrap" not in RUNTIMES:
        pytest.skip("no bubblewrap here")
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES="2") as server:
        await server.healthy()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            await check_the_stream(http)
            health = (await http.get("/health")).json()
            assert [worker["state"] for worker in health["workers"]] == ["serving", "serving"]
            async with aclosing(stream(http)) as events:  # type: ignore[type-var]
                await anext(events)
                began = time.monotonic()
                server.send(signal.SIGTERM)
                await server.ended()
                assert time.monotonic() - began < 10, "a stream must not hold it up"


async def test_it_works_alike_on_a_coordinator(state_dir: Path, redis_server: RedisServer) -> None:
    if "bubblewrap" not in RUNTIMES:
        pytest.skip("no bubblewrap here")
    async with running_fleet("bubblewrap", state_dir, redis_server, workers=2) as fleet:
        (coordinator,) = fleet.coordinators
        async with httpx.AsyncClient(base_url=coordinator.url, timeout=60) as http:
            assert (await http.get("/console/")).status_code == 200
            await check_the_stream(http)
            health = (await http.get("/health")).json()
            assert {worker["worker_id"] for worker in health["workers"]} == {
                worker.name for worker in fleet.workers
            }
        async with httpx.AsyncClient(base_url=fleet.workers[0].url) as http:
            assert (await http.get("/console/")).status_code == 404, "workers have none"


async def check_the_stream(http: httpx.AsyncClient) -> None:
    """Sessions of all workers come and go in it."""
    threads = [f"thread-{number}" for number in range(4)]
    async with asyncio.timeout(60), aclosing(stream(http)) as events:  # type: ignore[type-var]
        _, first = await anext(events)
        assert first["sessions"] == []
        for thread in threads:
            await http.post("/execute", json={"thread_id": thread, "command": "true"})
        seen: set[str] = set()
        while len(seen) < len(threads):
            _, data = await anext(events)
            seen |= {row["thread_id"] for row in data["changed"]}
        for thread in threads:
            await http.post("/cleanup", json={"thread_id": thread})
        gone = 0
        while gone < len(threads):
            gone += len((await anext(events))[1]["gone"])
