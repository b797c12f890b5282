"""Calls against the end of their session, clocks that jump, paths that are no text."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.runtime.base import Runtime
from tests.contract.stand import Stand, lone_standing, open_stand, served

PATIENCE_S = 60.0


@pytest.fixture
async def stand(server_runtime: Runtime) -> AsyncIterator[Stand]:
    async with lone_standing() as standing, open_stand(server_runtime, standing) as opened:
        yield opened


async def test_execute_against_cleanup_against_expiry(stand: Stand) -> None:
    """Whatever ends a session meanwhile, a command runs in its own thread's box, or is told."""
    threads = ("red", "blue")
    ended: list[type[errors.SandboxError]] = []
    generations: dict[str, set[int]] = {name: set() for name in threads}
    calls = 0

    async def call(name: str) -> None:
        nonlocal calls
        command = f"echo {name} >> names; : ${{was:={name}}}; echo $was $(sort -u names)"
        try:
            result = await stand.sandboxes.execute(ExecuteRequest(thread_id=name, command=command))
        except (errors.SessionNotFound, errors.SessionLost, errors.Capacity) as exc:
            ended.append(type(exc))
        else:
            assert result.output == f"{name} {name}\n"
            generations[name].add(result.generation)
        calls += 1

    async def clean_up() -> None:
        while True:
            for name in threads:
                before = calls
                while calls < before + 5:
                    await asyncio.sleep(0.01)
                with contextlib.suppress(errors.SessionNotFound):
                    await stand.sandboxes.cleanup(Target(thread_id=name))

    async def expire() -> None:
        """As if its time was over whenever it has nothing to do."""
        while True:
            for session in stand.worker.table.sessions():
                if session.record.thread_id == "blue":
                    session.idle_timeout_s = 0.0
            await asyncio.sleep(0.05)

    against = [asyncio.create_task(clean_up()), asyncio.create_task(expire())]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(8):
            await asyncio.gather(*(call(name) for name in threads for _ in range(3)))
    for task in against:
        task.cancel()
    await asyncio.gather(*against, return_exceptions=True)
    assert all(len(each) > 1 for each in generations.values()), (generations, ended)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_jumps_moves_no_expiry(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    for name, idle_s in (("kept", 600), ("short", 1)):
        request = CreateSessionRequest(thread_id=name, idle_timeout_s=idle_s)
        await stand.sandboxes.create_session(request)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(errors.SessionNotFound):
            while await stand.sandboxes.session(Target(thread_id="short")):
                await asyncio.sleep(0.05)
    result = await stand.sandboxes.execute(ExecuteRequest(thread_id="kept", command="true"))
    assert (result.generation, result.session_state) == (1, "live")


async def test_paths_that_are_not_text(stand: Stand) -> None:
    """As a browser or a script would send them: refused, or not found."""
    async with served(stand.service) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await http.post("/execute", json={"thread_id": "t", "command": "true"})
        for path in ("%ff%fe", "a%00b", "%2e%2e/%2e%2e/etc/x", "%ed%a0%80", "x" * 5000):
            for route in ("download_file", "list_files"):
                answer = await http.get(f"/{route}?thread_id=t&path={path}")
                assert answer.status_code in (404, 422), (path, answer.text)
                assert answer.json()["error"]["code"] in ("invalid_path", "file_not_found")
