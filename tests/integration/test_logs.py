"""What a server process writes to its log, in both forms."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.conftest import RUNTIMES, state_dir
from tests.server_process import PATIENCE_S, ServerProcess, running

__all__ = ["state_dir"]

KEY, WRONG_KEY = "key-of-acme-4711", "guessed-key-0815"
HEADERS = {"Authorization": f"Bearer {KEY}"}
HOSTILE = 'x\r\n{"event":"forged"}\x1b[31m\x9b31m\u2028 forged=1'
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


@pytest.fixture(params=["json", "console"])
async def server(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[ServerProcess]:
    settings = {"SANDBOX_LOG_FORMAT": str(request.param), "SANDBOX_API_KEYS": f"acme:{KEY}"}
    async with running("bubblewrap", state_dir, **settings) as process:
        await process.ready()
        yield process


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=60) as client:
        yield client


async def the_line(server: ServerProcess, *words: str) -> str:
    """The line in which all of these are, as soon as there is one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for line in server.lines():
                if all(word in line for word in words):
                    return line
            await asyncio.sleep(0.02)


def field(line: str, name: str) -> Any:
    """A field of a line of either form."""
    if line.startswith("{"):
        return json.loads(line).get(name)
    found = re.search(rf"\b{name}=(\S+)", line)
    return found[1] if found else None


async def test_what_the_lines_of_a_request_have_in_common(
    server: ServerProcess, http: httpx.AsyncClient
) -> None:
    body = {"thread_id": "conv-7", "command": "echo a-secret-of-the-caller"}
    answer = await http.post("/execute", json=body, headers={"X-Request-ID": "r-7"})
    assert answer.json()["exit_code"] == 0
    made = await the_line(server, "session.created", "r-7")
    told = await the_line(server, "/execute", "r-7")
    for line in (made, told):
        assert field(line, "request_id") == "r-7"
        assert field(line, "tenant") == "acme"
        assert field(line, "thread") == "conv-7"
    assert field(told, "command_id") == answer.json()["command_id"]

    await http.get("/session", params={"thread_id": "conv-8"}, headers={"X-Request-ID": "r-8"})
    other = await the_line(server, "/session", "r-8")
    assert (field(other, "thread"), field(other, "command_id")) == ("conv-8", None)
    assert "a-secret-of-the-caller" not in "\n".join(server.lines())


async def test_events_of_a_stream_are_told_by_their_command(
    server: ServerProcess, http: httpx.AsyncClient
) -> None:
    headers = {"Accept": "text/event-stream", "X-Request-ID": "r-9"}
    body = {"thread_id": "conv-9", "command": "echo a-secret-of-the-caller"}
    answer = await http.post("/execute", json=body, headers=headers)
    start = json.loads(answer.text.split("data: ")[1].splitlines()[0])
    assert field(await the_line(server, "/execute", "r-9"), "command_id") == start["command_id"]
    assert "a-secret-of-the-caller" not in "\n".join(server.lines())


async def test_nothing_that_callers_send_breaks_a_line(
    server: ServerProcess, http: httpx.AsyncClient
) -> None:
    good = {"thread_id": "conv-10"}
    calls: list[Callable[[], Any]] = [
        lambda: http.post("/create_session", json={"thread_id": HOSTILE}),
        lambda: http.get("/session", params={"thread_id": HOSTILE}),
        lambda: http.get("/session", params={"session_id": HOSTILE}),
        lambda: http.post("/cleanup", json={"session_id": HOSTILE}),
        lambda: http.post("/execute", json={**good, "command": f"echo '{HOSTILE}'; {HOSTILE}"}),
        lambda: http.post("/execute", json={**good, "command": "pwd", "cwd": HOSTILE}),
        lambda: http.post("/execute", json={**good, "command": "x", "idempotency_key": HOSTILE}),
        lambda: http.post("/create_session", json={**good, "environment": HOSTILE}),
        lambda: http.post("/upload_file", params={**good, "path": HOSTILE}, files={"file": b"1"}),
        lambda: http.post("/upload_file", params=good, files={"file": ("a\x1b[31mb", b"1")}),
        lambda: http.get("/download_file", params={**good, "path": HOSTILE}),
        lambda: http.get("/list_files", params={**good, "path": HOSTILE}),
        lambda: http.get("/" + HOSTILE.replace("\r\n", "%0d%0a").replace("\x1b", "%1b")),
        lambda: http.get("/health", headers={b"X-Request-ID": b"\x1b[31mforged"}),
        lambda: http.get("/health", headers={b"User-Agent": b"\x9b31mforged"}),
        lambda: http.get("/session", params=good, headers={"Authorization": f"Bearer {WRONG_KEY}"}),
        lambda: http.get("/session", params=good, headers={"X-API-Key": KEY + WRONG_KEY}),
    ]
    for call in calls:
        assert (await call()).status_code < 500
    await http.get("/health", headers={"X-Request-ID": "the-last"})
    await the_line(server, "the-last")
    whole = "\n".join(server.lines())
    assert KEY not in whole
    assert WRONG_KEY not in whole
    assert not CONTROL.search(whole)
    told = [line for line in server.lines() if field(line, "method")]
    assert len(told) > len(calls)
    for line in server.lines():
        assert field(line, "event") != "forged"
        assert re.match(r'\{"|\d{4}-\d\d-\d\dT', line), line
