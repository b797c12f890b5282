"""Limits of single keys: at a server alone, of several processes, and in a fleet."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from time import time
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox, RateLimitException

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RateLimited
from sandbox_sdk.protocol.events import StartEvent
from sandbox_sdk.protocol.models import (
    CommandTarget,
    CreateSessionRequest,
    ExecuteRequest,
    FollowRequest,
    HappeningsRequest,
    Pty,
    Target,
)
from sandbox_sdk.protocol.operations import EVENTS
from sandbox_server.access.known_keys import revoke, rotate
from tests.contract.conftest import RUNTIMES, folder, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.redis_server import RedisServer
from tests.integration.test_limits import admitted, job, release
from tests.key_place import PLACES, KeyPlace, key_place

__all__ = ["folder", "redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
LIMITS = {
    "SANDBOX_TENANT_LIMITS": "acme: requests=1, burst=300, commands=50; key {jobs}: commands=3;"
    " key {greedy}: requests=0.01, burst=2; key {small}: sessions=1;"
    " key {hourly}: sessions_per_hour=1"
}
NAMES = ("jobs", "free", "greedy", "small", "hourly")


@pytest.mark.parametrize("kind", PLACES)
async def test_limits_of_keys(
    kind: str, folder: Path, redis_server: RedisServer, subtests: pytest.Subtests
) -> None:
    async with key_place(kind, folder, redis_server, LIMITS, *NAMES) as place:
        with subtests.test("commands in the background"):
            await _background(place)
        with subtests.test("over MCP"):
            await _mcp(place)
        with subtests.test("with e2b's SDK"):
            await _e2b(place)
        with subtests.test("one that asks for too much uses up nothing of its tenant's"):
            await _requests(place)
        with subtests.test("live sessions"):
            await _sessions(place)
        with subtests.test("sessions an hour"):
            await _hourly(place)


async def refused(caller: RemoteBackend) -> None:
    for background in (True, False):
        with pytest.raises(RateLimited, match="this key may run 3 commands at a time") as e:
            await caller.execute(
                ExecuteRequest(thread_id="more", command="true", background=background)
            )
        assert e.value.details["limit"] == "commands"


async def _background(place: KeyPlace) -> None:
    """They count until they end, and for nobody else of their tenant."""
    async with place.of("jobs") as caller, place.of("free") as other:
        begun = [await caller.execute(job(thread)) for thread in ("a", "b")]
        shell = ExecuteRequest(thread_id="c", command="cat", background=True, pty=Pty())
        await caller.execute(shell)
        await refused(caller)
        await other.execute(job("d"))
        told = HappeningsRequest(after="", kind="limit.reached", limit=1000)
        found = (await other.call(EVENTS, told)).events
        assert {each.data["key"] for each in found} == {place.id_of("jobs")}
        again = await caller.execute(job("a"))  # It begins nothing.
        assert (again.command_id, again.replayed) == (begun[0].command_id, True)
        follow = FollowRequest(thread_id="a", command_id=begun[0].command_id)
        async with aclosing(caller.events(follow)) as events:
            assert isinstance(await anext(events), StartEvent)
        await release(caller, "a")
        await admitted(caller, job("e"))
        await refused(caller)
        for thread in "bc":
            await caller.cleanup(Target(thread_id=thread))
        await admitted(caller, job("f"))
        for thread in "aef":
            await other.cleanup(Target(thread_id=thread))


async def _mcp(place: KeyPlace) -> None:
    """The tools over MCP are the key's too."""
    async with place.of("jobs") as caller:
        for thread in "abc":
            await admitted(caller, job(thread))
        called = await _call_tool(place, "jobs")
        assert "this key may run 3 commands at a time" in called
        assert "hello" in await _call_tool(place, "free")
        for thread in "abc":
            await caller.cleanup(Target(thread_id=thread))


async def _call_tool(place: KeyPlace, name: str) -> str:
    """What a key is told that runs a command over MCP."""
    call = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "bash", "arguments": {"command": "echo hello"}},
    }  # fmt: skip
    begin = {
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {"protocolVersion": "2025-03-26", "capabilities": {},
                   "clientInfo": {"name": "test", "version": "1"}},
    }  # fmt: skip
    headers = {
        "Accept": "application/json, text/event-stream", "X-Sandbox-Thread": "over-mcp",
        "X-API-Key": place.keys[name].text,
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=place.server.url, headers=headers, timeout=60) as http:
        begun = await http.post("/mcp", json=begin)
        http.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        return (await http.post("/mcp", json=call)).text


async def _e2b(place: KeyPlace) -> None:
    """Who connects to a process that runs counts as none more."""
    door = f"{place.server.url}/e2b"
    options: dict[str, Any] = {"api_url": door, "sandbox_url": door, "validate_api_key": False}
    options["api_key"] = place.keys["jobs"].text
    box = await AsyncSandbox.create(timeout=300, **options)
    running = [await box.commands.run("sleep 600", background=True, timeout=0) for _ in range(3)]
    with pytest.raises(Exception, match="this key may run 3 commands at a time"):
        await box.commands.run("true")
    again = await box.commands.connect(running[0].pid)
    await again.disconnect()
    for each in running:
        await each.kill()
        await each.disconnect()
    async with asyncio.timeout(60):
        while True:
            try:
                assert (await box.commands.run("echo on")).stdout == "on\n"
                break
            except RateLimitException:
                await asyncio.sleep(0.05)
    await box.kill()


async def _requests(place: KeyPlace) -> None:
    async with httpx.AsyncClient(base_url=place.server.url) as http:
        asked = {name: {"X-API-Key": place.keys[name].text} for name in NAMES}

        async def left(name: str) -> int:
            answer = await http.get("/sessions", headers=asked[name])
            assert answer.status_code == 200
            return int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0])

        for _ in range(2):
            await left("greedy")
        before = await left("free")
        for _ in range(4):
            answer = await http.get("/sessions", headers=asked["greedy"])
            assert answer.status_code == 429
            assert "this key may send 0.01 requests" in answer.json()["error"]["message"]
        assert await left("free") >= before - 1


async def _sessions(place: KeyPlace) -> None:
    """A session counts for the key that made it, whoever uses it."""
    async with place.of("small") as caller, place.of("free") as other:
        await other.create_session(CreateSessionRequest(thread_id="theirs"))
        await caller.execute(ExecuteRequest(thread_id="theirs", command="true"))
        await caller.create_session(CreateSessionRequest(thread_id="mine"))
        with pytest.raises(RateLimited, match="this key may have 1 sessions, and has 1") as e:
            await caller.create_session(CreateSessionRequest(thread_id="second"))
        assert e.value.details["limit"] == "sessions"
        await other.create_session(CreateSessionRequest(thread_id="second"))
        await other.cleanup(Target(thread_id="mine"))
        await admitted(caller, ExecuteRequest(thread_id="third", command="true"))
        for thread in ("theirs", "second", "third"):
            await other.cleanup(Target(thread_id=thread))


async def _hourly(place: KeyPlace) -> None:
    async with place.of("hourly") as caller, place.of("free") as other:
        await caller.create_session(CreateSessionRequest(thread_id="first"))
        with pytest.raises(RateLimited, match="this key may make 1 sessions an hour") as e:
            await caller.create_session(CreateSessionRequest(thread_id="next"))
        assert e.value.details["limit"] == "sessions_per_hour"
        await other.create_session(CreateSessionRequest(thread_id="next"))
        for thread in ("first", "next"):
            await other.cleanup(Target(thread_id=thread))


@pytest.mark.parametrize("kind", PLACES)
async def test_over_a_restart_and_the_end_of_a_key(
    kind: str, folder: Path, redis_server: RedisServer
) -> None:
    """The next process knows which key began what, and a key that has ended breaks nothing."""
    limits = {"SANDBOX_TENANT_LIMITS": "key *: commands=3"}
    async with key_place(kind, folder, redis_server, limits, "jobs", "gone", "free") as place:
        async with place.of("jobs") as caller, place.of("gone") as ending:
            for thread in ("a", "b"):
                await caller.execute(job(thread))
            left = await ending.execute(job("left"))
        await place.restart()
        new = await rotate(place.store, place.id_of("jobs"), overlap_s=3600, now=time())
        await revoke(place.store, place.id_of("gone"), now=time())
        await place.taken_up(new.text, valid=True)
        await place.taken_up(place.keys["gone"].text, valid=False)
        async with place.of("jobs", retry_for_s=60) as caller:
            await caller.execute(job("c"))
        async with place.of("jobs") as caller:
            await refused(caller)
        async with place.of("free") as other:
            await admitted(other, job("d"))
            for thread in ("a", "left"):
                await release(other, thread)
            target = CommandTarget(thread_id="left", command_id=left.command_id)
            async for _ in other.follow(target, left.command_id):
                pass
        async with place.of("jobs") as caller:
            await admitted(caller, job("e"))
            await refused(caller)
        async with RemoteBackend(place.server.url, api_key=new.text, retry_for_s=60) as rotated:
            await rotated.execute(job("f"))
        async with place.of("free") as other:
            for each in (await other.sessions()).sessions:
                await other.cleanup(Target(session_id=each.session_id))
