"""Events and webhooks over HTTP: at a server alone, of several processes, and in a fleet."""

import asyncio
import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import InvalidRequest, RateLimited
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    ExecuteRequest,
    Happening,
    HappeningsRequest,
    Target,
)
from tests.contract.conftest import RUNTIMES, folder, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import GRACE_S, Fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import PATIENCE_S, ServerProcess, running
from tests.webhook_receiver import SECRET, Receiver, receiving

__all__ = ["folder", "redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
KEYS = {"SANDBOX_API_KEYS": "acme:key-a,beta:key-b"}
LASTS_S = f"2.{uuid.uuid4().int % 10**9:09}"
"""A command that can be found among the processes of the machine."""
LIMITS = {"SANDBOX_TENANT_LIMITS": "beta: sessions=1"}


@dataclass
class Place:
    server: ServerProcess
    """Where callers are."""
    workers: list[ServerProcess]
    """Where the boxes are."""
    receiver: Receiver

    def backend(self, key: str) -> RemoteBackend:
        return RemoteBackend(self.server.url, api_key=key, retry_for_s=0)

    def received(self, kind: str) -> list[dict[str, Any]]:
        return [each.event for each in self.receiver.received if each.event["kind"] == kind]

    async def until_received(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        await self.receiver.until(lambda: len(self.received(kind)) >= count, within_s=PATIENCE_S)
        return self.received(kind)


@pytest.fixture(params=["alone", "processes", "fleet"])
async def place(
    request: pytest.FixtureRequest, folder: Path, redis_server: RedisServer
) -> AsyncIterator[Place]:
    async with receiving() as receiver:
        hooks = {"SANDBOX_WEBHOOKS": str(webhooks_file(folder, receiver.url))}
        settings = {**KEYS, **LIMITS, **hooks}
        if request.param == "fleet":
            fleet = Fleet("bubblewrap", folder, redis_server, grace_s=GRACE_S)
            try:
                workers = [fleet.process("worker", **LIMITS, **hooks) for _ in range(2)]
                await fleet.run(workers, [fleet.process("coordinator", **settings)])
                yield Place(fleet.coordinators[0], workers, receiver)
            finally:
                await fleet.close()
            return
        processes = "2" if request.param == "processes" else "1"
        async with running("bubblewrap", folder, SANDBOX_PROCESSES=processes, **settings) as server:
            await server.healthy()
            yield Place(server, [server], receiver)


def webhooks_file(folder: Path, url: str, **more: object) -> Path:
    path = folder / "webhooks.yaml"
    ops = {"name": "ops", "url": url, "secret": SECRET, **more}
    ours = {"name": "ours", "url": url, "secret": SECRET, "kinds": [], "tenants": ["acme"]}
    path.write_text(yaml.safe_dump({"webhooks": [ops, ours]}))
    return path


async def collected(backend: RemoteBackend, count: int, **about: Any) -> list[Happening]:
    found: list[Happening] = []
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(backend.watch(**about)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_what_happens(place: Place, subtests: pytest.Subtests) -> None:
    async with place.backend("key-a") as acme, place.backend("key-b") as beta:
        start = (await acme.happenings(HappeningsRequest())).next
        for thread in ("one", "two"):
            await acme.execute(ExecuteRequest(thread_id=thread, command="exit 3"))
        await acme.checkpoint(CheckpointRequest(thread_id="one"))
        for thread in ("one", "two"):
            await acme.cleanup(Target(thread_id=thread))
        told = await collected(acme, 7, after=start)
        with subtests.test("in order for each thread"):
            kinds = [event.kind for event in told if event.thread_id == "one"]
            assert kinds == [
                "session.created", "command.finished", "checkpoint.created", "session.ended"
            ]  # fmt: skip
            (ran,) = [e for e in told if e.kind == "command.finished" and e.thread_id == "two"]
            assert (ran.data["exit_code"], ran.data["outcome"]) == (3, "failed")
            assert {e.data["reason"] for e in told if e.kind == "session.ended"} == {"cleaned"}
        with subtests.test("from any of them on"):
            again = await collected(acme, 3, after=told[3].id)
            assert [event.kind for event in again] == [event.kind for event in told[4:]]
        with subtests.test("of a thread, of a kind"):
            (only,) = await collected(acme, 1, after=start, thread_id="two", kind="session.ended")
            assert (only.thread_id, only.kind) == ("two", "session.ended")
        with subtests.test("a tenant is told its own"):
            found = await beta.happenings(HappeningsRequest(after=start))
            assert found.events == []
            with pytest.raises(InvalidRequest, match="not a position"):
                await beta.happenings(HappeningsRequest(after="nonsense"))
        with subtests.test("webhooks are told what they want, signed and in order"):
            await place.until_received("session.ended", 2)
            assert all(each.is_signed for each in place.receiver.received)
            of_one = [e.event["kind"] for e in place.receiver.received
                      if e.event["thread_id"] == "one"]  # fmt: skip
            assert of_one == ["session.created", "checkpoint.created", "session.ended"]
        with subtests.test("a limit"):
            await beta.execute(ExecuteRequest(thread_id="b", command="true"))
            with pytest.raises(RateLimited):
                await beta.execute(ExecuteRequest(thread_id="another", command="true"))
            (reached,) = await place.until_received("limit.reached")
            assert (reached["data"]["tenant"], reached["data"]["limit"]) == ("beta", "sessions")
            (told_too,) = await collected(beta, 1, after="", kind="limit.reached")
            assert told_too.data["limit"] == "sessions"


async def test_a_stream_of_them(place: Place) -> None:
    """As browsers take it: named, and from the last one on when it is opened again."""
    headers = {"x-api-key": "key-a", "accept": "text/event-stream"}
    async with (
        place.backend("key-a") as acme,
        httpx.AsyncClient(base_url=place.server.url, headers=headers, timeout=PATIENCE_S) as http,
    ):
        async with http.stream("GET", "/events", params={"thread_id": "s"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.aiter_lines()
            await anext(lines)  # It has begun.
            await acme.execute(ExecuteRequest(thread_id="s", command="true"))
            first = await frame(lines)
            assert first["event"] == "session.created"
        await acme.cleanup(Target(thread_id="s"))
        again = {"last-event-id": first["id"]}
        async with http.stream("GET", "/events", params={"thread_id": "s"}, headers=again) as more:
            lines = more.aiter_lines()
            names = [(await frame(lines))["event"] for _ in range(2)]
            assert names == ["command.finished", "session.ended"]
        wrong = await http.get("/events", headers={"last-event-id": "; drop"})
        assert wrong.status_code in (400, 422)


async def frame(lines: AsyncIterator[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            found[name] = value
        elif not line and "data" in found:
            return found
    raise AssertionError("the stream has ended")


async def test_the_end_of_a_command_that_named_a_webhook(
    place: Place, subtests: pytest.Subtests
) -> None:
    def command(text: str, notify: str = "ours", **more: Any) -> ExecuteRequest:
        return ExecuteRequest(thread_id="n", command=text, background=True, notify=notify, **more)

    async with place.backend("key-a") as acme, place.backend("key-b") as beta:
        with subtests.test("it is told"):
            ran = await acme.execute(command("exit 4"))
            (told,) = await place.until_received("command.finished")
            assert (told["data"]["command_id"], told["data"]["exit_code"]) == (ran.command_id, 4)
        with subtests.test("only one that there is, for this tenant"):
            with pytest.raises(InvalidRequest, match="no webhook is named 'mine': there is ops"):
                await acme.execute(command("true", "mine"))
            with pytest.raises(InvalidRequest, match=r"there is ops$"):
                await beta.execute(command("true"))
        with subtests.test("once, though it is asked for twice"):
            first = await acme.execute(command("sleep 0.5", idempotency_key="k"))
            second = await acme.execute(command("sleep 0.5", idempotency_key="k"))
            assert first.command_id == second.command_id
            await place.until_received("command.finished", 2)
            found = await acme.happenings(HappeningsRequest(after="", kind="command.finished"))
            ends = [each.data["command_id"] for each in found.events]
            assert ends.count(first.command_id) == 1
        with subtests.test("it ends while the server is away"):
            ran = await acme.execute(command(f"sleep {LASTS_S}; exit 5"))
            where = (await acme.session(Target(thread_id="n"))).worker or ""
            owner = next(each for each in place.workers if where.startswith(each.name))
            await owner.stop()
            await _ended(f"sleep\0{LASTS_S}")
            await owner.start()
            await owner.ready()
            told = (await place.until_received("command.finished", 3))[2]
            assert (told["data"]["command_id"], told["data"]["exit_code"]) == (ran.command_id, 5)
        with subtests.test("its session ends first"):
            ran = await acme.execute(command("sleep 1000"))
            await acme.cleanup(Target(thread_id="n"))
            await place.receiver.until(lambda: _names(place, ran.command_id), within_s=PATIENCE_S)


async def _ended(words: str) -> None:
    """Returns when no process of the machine was started with these words."""
    async with asyncio.timeout(PATIENCE_S):
        while any(words in text for text in map(_words, Path("/proc").glob("[0-9]*/cmdline"))):
            await asyncio.sleep(0.05)


def _words(path: Path) -> str:
    with contextlib.suppress(OSError):  # It has ended.
        return path.read_text(errors="replace")
    return ""


def _names(place: Place, command_id: str) -> bool:
    return any(command_id in json.dumps(each.event) for each in place.receiver.received)


async def test_what_is_given_up_is_kept_and_sent_again(folder: Path) -> None:
    async with receiving() as receiver:
        receiver.status = lambda _: 500
        path = webhooks_file(folder, receiver.url)
        async with running(
            "bubblewrap", folder, SANDBOX_WEBHOOKS=str(path), SANDBOX_WEBHOOK_ATTEMPTS="2"
        ) as server:
            await server.healthy()
            async with RemoteBackend(server.url) as anyone:
                await anyone.execute(ExecuteRequest(thread_id="t", command="true"))
                async with asyncio.timeout(PATIENCE_S):
                    while not (dead := _cli(server, "dead")):
                        await asyncio.sleep(0.2)
            assert dead[0]["event"]["kind"] == "session.created"
            assert dead[0]["why"] == "answered 500"
            receiver.status = lambda _: 200
            count = len(receiver.received)
            assert _cli(server, "retry") == {"retried": 1}
            await receiver.until(lambda: len(receiver.received) > count, within_s=PATIENCE_S)
            assert _cli(server, "dead") == []
            assert not any(SECRET in line for line in server.lines())


def _cli(server: ServerProcess, *words: str) -> Any:
    program = str(Path(sys.executable).with_name("sandbox"))
    told = subprocess.run(
        [program, "webhooks", *words, "--json"],
        env={"PATH": "/usr/bin:/bin", **server.settings},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(told.stdout)
