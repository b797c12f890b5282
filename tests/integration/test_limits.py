"""Limits of tenants and keys over HTTP: at a server alone, of several processes, and in a fleet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RateLimited
from sandbox_sdk.protocol.events import StartEvent
from sandbox_sdk.protocol.models import (
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    FollowRequest,
    Pty,
    Target,
    UploadRequest,
)
from tests.contract.conftest import RUNTIMES, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import GRACE_S, Fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess, running

__all__ = ["redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
LIMITS = (
    "slow: requests=0.01, burst=5; few: commands=2; jobs: commands=3; small: sessions=2;"
    " hourly: sessions_per_hour=2; *: requests=1000"
)
NAMES = ("slow", "few", "jobs", "small", "hourly", "free")
SETTINGS = {
    "SANDBOX_API_KEYS": ",".join(f"{name}:key-of-{name}" for name in NAMES),
    "SANDBOX_TENANT_LIMITS": LIMITS,
}


@pytest.fixture(params=["alone", "processes", "fleet"])
async def server(
    request: pytest.FixtureRequest, state_dir: Path, redis_server: RedisServer
) -> AsyncIterator[ServerProcess]:
    if request.param == "fleet":
        fleet = Fleet("bubblewrap", state_dir, redis_server, grace_s=GRACE_S)
        try:
            workers = [fleet.process("worker", SANDBOX_TENANT_LIMITS=LIMITS) for _ in range(2)]
            await fleet.run(workers, [fleet.process("coordinator", **SETTINGS)])
            yield fleet.coordinators[0]
        finally:
            await fleet.close()
        return
    processes = "2" if request.param == "processes" else "1"
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES=processes, **SETTINGS) as alone:
        await alone.healthy()
        yield alone


def of(server: ServerProcess, tenant: str) -> RemoteBackend:
    return RemoteBackend(server.url, api_key=f"key-of-{tenant}", retry_for_s=0)


async def test_limits(server: ServerProcess, subtests: pytest.Subtests) -> None:
    with subtests.test("requests a second"):
        await _requests(server)
    with subtests.test("commands at a time"):
        await _commands(server)
    with subtests.test("commands in the background"):
        await _background(server)
    with subtests.test("live sessions"):
        await _sessions(server)
    with subtests.test("sessions an hour"):
        async with of(server, "hourly") as caller:
            for number in range(2):
                made = await caller.create_session(CreateSessionRequest(thread_id=f"t{number}"))
                await caller.cleanup(Target(session_id=made.session_id))
            with pytest.raises(RateLimited, match="2 sessions an hour") as refused:
                await caller.create_session(CreateSessionRequest(thread_id="t2"))
            assert refused.value.details["limit"] == "sessions_per_hour"
            assert refused.value.details["retry_after_s"] > 1000


async def _requests(server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        answers = [
            await http.get("/sessions", headers={"x-api-key": "key-of-slow"}) for _ in range(7)
        ]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
        assert answers[0].headers["ratelimit-policy"] == '"requests";q=5;w=500'
        assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == [
            "r=4", "r=3", "r=2", "r=1", "r=0", "r=0", "r=0",
        ]  # fmt: skip
        refused = answers[-1]
        assert refused.json()["error"]["details"]["limit"] == "requests"
        assert 90 < int(refused.headers["retry-after"]) <= 100
        assert "0.01 requests a second" in refused.json()["error"]["message"]
        free = await http.get("/sessions", headers={"x-api-key": "key-of-free"})
        assert free.status_code == 200
        assert (await http.get("/health")).status_code == 200


async def _commands(server: ServerProcess) -> None:
    """Streams hold their place until they end; a refused command has not run."""
    async with of(server, "few") as caller:
        wait = "until [ -e go ]; do sleep 0.05; done"
        streams = []
        for thread in ("a", "b"):
            stream = caller.stream(ExecuteRequest(thread_id=thread, command=wait))
            assert isinstance(await anext(stream), StartEvent)
            streams.append(stream)
        request = ExecuteRequest(thread_id="c", command="echo ran >> log; cat log")
        with pytest.raises(RateLimited, match="2 commands at a time") as refused:
            await caller.execute(request)
        assert refused.value.details["limit"] == "commands"
        async with of(server, "free") as other:
            assert (await other.execute(request)).output == "ran\n"
        assert len((await caller.sessions()).sessions) == 2
        for stream in streams:
            await stream.aclose()
        assert (await admitted(caller, request)).output == "ran\n"


async def admitted(caller: RemoteBackend, request: ExecuteRequest) -> ExecuteResult:
    """Its result, as soon as there is room for it."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await caller.execute(request)
            except RateLimited:
                await asyncio.sleep(0.02)


def job(thread: str) -> ExecuteRequest:
    return ExecuteRequest(
        thread_id=thread,
        command="until [ -e go ]; do sleep 0.05; done",
        background=True,
        idempotency_key=f"job-{thread}",
    )


async def release(caller: RemoteBackend, thread: str) -> None:
    """The job of a thread ends."""

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    await caller.upload(UploadRequest(thread_id=thread, path="go"), nothing())


async def refused(caller: RemoteBackend) -> None:
    """Neither in the background nor otherwise there may be one more."""
    for background in (True, False):
        with pytest.raises(RateLimited, match="3 commands at a time"):
            await caller.execute(
                ExecuteRequest(thread_id="more", command="true", background=background)
            )


async def _background(server: ServerProcess) -> None:
    """They count until they end, however that is."""
    async with of(server, "jobs") as caller:
        begun = [await caller.execute(job(thread)) for thread in ("a", "b")]
        shell = ExecuteRequest(thread_id="c", command="cat", background=True, pty=Pty())
        await caller.execute(shell)
        await refused(caller)
        again = await caller.execute(job("a"))  # It begins nothing.
        assert (again.command_id, again.replayed) == (begun[0].command_id, True)
        follow = FollowRequest(thread_id="a", command_id=again.command_id)
        async with aclosing(caller.events(follow)) as events:  # Nor does this.
            assert isinstance(await anext(events), StartEvent)
        await release(caller, "a")
        await admitted(caller, job("d"))
        await refused(caller)
        await caller.cleanup(Target(thread_id="b"))
        await admitted(caller, job("e"))
        await refused(caller)
        for thread in "ce":
            await caller.cleanup(Target(thread_id=thread))
        quick = ExecuteRequest(thread_id="a", command="true", background=True)
        for _ in range(4):
            await admitted(caller, quick)
        await caller.cleanup(Target(thread_id="d"))


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_commands_in_the_background_over_a_restart(state_dir: Path, processes: str) -> None:
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES=processes, **SETTINGS) as server:
        await _over_a_restart(server, server)


async def test_commands_in_the_background_over_a_restart_of_a_worker(
    state_dir: Path, redis_server: RedisServer
) -> None:
    fleet = Fleet("bubblewrap", state_dir, redis_server, grace_s=GRACE_S)
    try:
        worker = fleet.process("worker", SANDBOX_TENANT_LIMITS=LIMITS)
        await fleet.run([worker], [fleet.process("coordinator", **SETTINGS)])
        await _over_a_restart(fleet.coordinators[0], worker)
    finally:
        await fleet.close()


async def _over_a_restart(server: ServerProcess, restarted: ServerProcess) -> None:
    await server.healthy()
    async with RemoteBackend(server.url, api_key="key-of-jobs") as caller:
        for thread in ("a", "b"):
            await caller.execute(job(thread))
        await restarted.stop()
        await restarted.start()
        await restarted.healthy()
        await caller.execute(job("c"))
    async with of(server, "jobs") as caller:
        await refused(caller)
        for thread in "abc":
            await release(caller, thread)
        await admitted(caller, job("d"))
        await caller.cleanup(Target(thread_id="d"))


async def _sessions(server: ServerProcess) -> None:
    async with of(server, "small") as caller:
        outcomes = await asyncio.gather(
            *(
                caller.execute(ExecuteRequest(thread_id=f"t{number}", command="true"))
                for number in range(6)
            ),
            return_exceptions=True,
        )
        refused = [each for each in outcomes if isinstance(each, RateLimited)]
        assert len(refused) == 4, outcomes
        assert {each.message.partition(";")[0] for each in refused} == {
            "this tenant may have 2 sessions, and has 2"
        }
        live = (await caller.sessions()).sessions
        assert len(live) == 2
        # A thread that is live goes on.
        again = ExecuteRequest(thread_id=live[0].thread_id, command="echo on")
        assert (await caller.execute(again)).output == "on\n"
        await caller.cleanup(Target(session_id=live[0].session_id))
        async with asyncio.timeout(30):
            while True:
                try:
                    await caller.create_session(CreateSessionRequest(thread_id="later"))
                    break
                except RateLimited:
                    await asyncio.sleep(0.05)
