"""`sandbox serve --processes`: one server to its callers, whatever happens to its processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import ExitEvent, OutputEvent
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Health, Target
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.server_process import ServerProcess, running

__all__ = ["state_dir"]

pytestmark = [
    pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="needs bubblewrap"),
    pytest.mark.timeout(300),
]
THREADS = [f"conv-{number}" for number in range(8)]


async def run(client: RemoteBackend, thread: str, command: str) -> str:
    result = await client.execute(ExecuteRequest(thread_id=thread, command=command))
    assert (result.exit_code, result.generation) == (0, 1), result
    return result.output


async def until_healthy(client: RemoteBackend) -> Health:
    while (health := await client.health()).status != "healthy":
        await asyncio.sleep(0.05)
    return health


async def test_a_process_that_is_killed_is_restarted_and_nothing_is_lost(
    state_dir: Path, subtests: pytest.Subtests
) -> None:
    keys = "acme:key-a,globex:key-g"
    settings = {"SANDBOX_PROCESSES": "3", "SANDBOX_API_KEYS": keys, "SANDBOX_POOL_SIZE": "0"}
    async with (
        running("bubblewrap", state_dir, **settings) as server,
        RemoteBackend(server.url, api_key="key-a", retry_for_s=60) as client,
    ):
        await server.ready()
        await asyncio.gather(*(run(client, thread, "n=0") for thread in THREADS))
        made = (await client.sessions()).sessions
        assert {session.thread_id for session in made} == set(THREADS)

        with subtests.test("threads are spread over all processes"):
            assert {s.worker for s in made} == {f"{server.name}~{index}" for index in range(3)}

        with subtests.test("any connection reaches any session, by any of its names"):
            headers = {"authorization": "Bearer key-a"}
            for session in made:
                for body in ({"thread_id": session.thread_id}, {"session_id": session.session_id}):
                    async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
                        answer = await http.post("/execute", json={**body, "command": "echo $n"})
                        assert answer.json()["output"] == "0\n", answer.text

        with subtests.test("a session without a thread is found by its own name"):
            own = await client.create_session(CreateSessionRequest())
            for target in (Target(session_id=own.session_id), Target(thread_id=own.thread_id)):
                assert (await client.session(target)).session_id == own.session_id
            await client.cleanup(Target(session_id=own.session_id))
            with pytest.raises(errors.SessionNotFound):
                await client.session(Target(session_id=own.session_id))

        with subtests.test("tenants do not see each other's threads, on any process"):
            async with RemoteBackend(server.url, api_key="key-g") as other:
                assert (await other.sessions()).sessions == []
                for session in made:
                    with pytest.raises(errors.SessionNotFound):
                        await other.session(Target(thread_id=session.thread_id))
                    with pytest.raises(errors.SessionNotFound):
                        await other.session(Target(session_id=session.session_id))

        with subtests.test("commands and streams go on when a process is killed"):
            await _kill_one_in_the_middle(server, client)

        with subtests.test("every line of a process in the log has its number"):
            lines = [json.loads(line) for line in server.lines()]
            requests = [line for line in lines if line["event"] == "request"]
            assert {line.get("process") for line in requests} == {0, 1, 2}
            (ended,) = [line for line in lines if line["event"] == "process.ended"]
            assert (ended["process"], ended["code"]) == (1, -signal.SIGKILL)

        with subtests.test("stopping it stops all, and leaves the sessions"):
            pids = server.children()
            server.send(signal.SIGTERM)
            assert await server.ended() == 0
            assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
            stopped = [json.loads(line) for line in server.lines() if "server.stopped" in line]
            assert sum(line["sessions"] for line in stopped) == len(THREADS)


async def _kill_one_in_the_middle(server: ServerProcess, client: RemoteBackend) -> None:
    began = asyncio.Event()

    async def follow(thread: str) -> str:
        text = ""
        command = "echo x >> runs; for i in $(seq 60); do echo line $i; sleep 0.05; done; cat runs"
        async for event in client.stream(ExecuteRequest(thread_id=thread, command=command)):
            if isinstance(event, OutputEvent):
                text += event.data
                began.set()
            elif isinstance(event, ExitEvent):
                assert (event.exit_code, event.generation) == (0, 1)
        return text

    counting = "n=$((n+1)); echo $n >> counted; sleep 1; wc -l < counted"
    streams = [asyncio.create_task(follow(thread)) for thread in THREADS]
    calls = [asyncio.create_task(run(client, thread, counting)) for thread in THREADS]
    await began.wait()
    pids = server.children()
    os.kill(pids[1], signal.SIGKILL)
    assert {int(count) for count in await asyncio.gather(*calls)} == {1}
    lines = "".join(f"line {number}\n" for number in range(1, 61))
    assert set(await asyncio.gather(*streams)) == {f"{lines}x\n"}
    assert (await until_healthy(client)).active_sessions == len(THREADS)
    assert len(server.children()) == 3
    assert pids[1] not in server.children()


@pytest.mark.rest
async def test_sessions_are_found_by_another_number_of_processes(
    state_dir: Path, subtests: pytest.Subtests
) -> None:
    settings = {"SANDBOX_PROCESSES": "4", "SANDBOX_MAX_SESSIONS": "9", "SANDBOX_POOL_SIZE": "0"}
    async with (
        running("bubblewrap", state_dir, **settings) as server,
        RemoteBackend(server.url, retry_for_s=60) as client,
    ):
        await server.ready()
        await asyncio.gather(*(run(client, thread, "n=0; echo kept > file") for thread in THREADS))
        lost = CreateSessionRequest(thread_id="lost")
        made = await client.create_session(lost)

        with subtests.test("room is counted for all processes together"):
            with pytest.raises(errors.Capacity, match="9 of 9"):
                async with RemoteBackend(server.url, retry_for_s=0) as hasty:
                    await hasty.create_session(CreateSessionRequest(thread_id="too-many"))
            assert (await client.health()).capacity == 9

        await _refuses_a_second(server, subtests)
        for count, how in ((2, signal.SIGTERM), (3, signal.SIGKILL)):
            with subtests.test("every session is there", processes=count):
                await server.stop(how)
                if count == 2:
                    await _destroy_box(state_dir, made.worker, made.session_id, server.name)
                server.settings["SANDBOX_PROCESSES"] = str(count)
                await server.start()
                await server.ready()
                again = "n=$((n+1)); echo $n; cat file"
                got = await asyncio.gather(*(run(client, thread, again) for thread in THREADS))
                assert len(set(got)) == 1
                assert got[0].endswith("\nkept\n")
                assert (await until_healthy(client)).active_sessions == len(THREADS)

        with subtests.test("one whose box was lost meanwhile is told so"):
            with pytest.raises(errors.SessionLost):
                await client.session(Target(session_id=made.session_id))
            assert (await client.create_session(lost)).generation == 2

        with subtests.test("they can be ended while no server runs"):
            await server.stop(signal.SIGTERM)
            serve = [sys.executable, "-m", "sandbox_server", "--end-sessions"]
            env = {**os.environ, **server.settings}
            ended = subprocess.run(serve, env=env, capture_output=True, text=True, check=True)
            assert ended.stdout == f"{len(THREADS) + 1} sessions ended\n"


async def _refuses_a_second(server: ServerProcess, subtests: pytest.Subtests) -> None:
    serve = [sys.executable, "-m", "sandbox_server"]
    for says, other in (
        (f"another server named {server.name}", {"SANDBOX_PORT": "0"}),
        ("cannot listen on", {"SANDBOX_WORKER_ID": f"{server.name}-other"}),
    ):
        with subtests.test("a second server is refused", says=says):
            env = {**os.environ, **server.settings, **other}
            second = await asyncio.to_thread(
                subprocess.run, serve, env=env, capture_output=True, text=True, check=False
            )
            assert second.returncode == 125
            assert says in second.stderr


async def _destroy_box(state_dir: Path, owner: str, session_id: str, name: str) -> None:
    from sandbox_server.sessions.sqlite import SqliteRegistry

    registry = SqliteRegistry(state_dir / f"{name}.sqlite")
    record = registry.find("default", Target(session_id=session_id))
    await registry.close()
    assert record is not None
    async with make_runtime("bubblewrap", state_dir) as runtime:
        (box,) = [box for box in await runtime.boxes(owner) if box.id == record.box_id]
        await box.destroy()


async def test_what_keeps_a_process_from_starting_is_told(state_dir: Path) -> None:
    env = {
        **os.environ,
        "SANDBOX_RUNTIME": "docker",
        "DOCKER_HOST": "unix:///nowhere/docker.sock",
        "SANDBOX_STATE_DIR": str(state_dir),
        "SANDBOX_PORT": "0",
    }
    serve = [sys.executable, "-m", "sandbox_server", "--processes", "2", "--json"]
    failed = await asyncio.to_thread(
        subprocess.run, serve, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert failed.returncode == 125
    assert json.loads(failed.stdout)["error"]["code"] == "runtime_unavailable"
