"""The failure contract: what callers see when a part of the fleet dies, freezes or forgets."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.events import ExitEvent, OutputEvent
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.fleet.workers import Drain, Presence
from tests.fleet.fleet import (
    GRACE_S,
    KEY,
    LEASE_S,
    SHORT_GRACE_S,
    Balancer,
    Fleet,
    default_runtime,
    remote,
    running_fleet,
)
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess

pytestmark = pytest.mark.timeout(240)
COUNT = "n=$((n+1)); echo $n"


@pytest.fixture
async def fleet(
    request: pytest.FixtureRequest, redis_server: RedisServer, state_dir: Path
) -> AsyncIterator[Fleet]:
    grace_s = SHORT_GRACE_S if request.node.get_closest_marker("short_grace") else GRACE_S
    async with running_fleet(
        default_runtime(), state_dir, redis_server, workers=2, grace_s=grace_s
    ) as made:
        yield made


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[RemoteBackend]:
    async with remote(fleet.coordinators[0]) as made:
        yield made


async def count(client: RemoteBackend, thread_id: str = "t") -> tuple[str, int, str]:
    result = await client.execute(ExecuteRequest(thread_id=thread_id, command=COUNT))
    return result.output.strip(), result.generation, result.session_state


async def owner(fleet: Fleet, client: RemoteBackend, thread_id: str = "t") -> ServerProcess:
    session = await client.session(Target(thread_id=thread_id))
    return fleet.named(session.worker)


async def test_a_killed_worker_comes_back_with_everything(
    fleet: Fleet, client: RemoteBackend
) -> None:
    assert await count(client) == ("1", 1, "created")
    worker = await owner(fleet, client)
    request = ExecuteRequest(thread_id="t", command="echo x >> f; sleep 3; wc -l < f")
    running = asyncio.create_task(client.execute(request))
    while not (await client.session(Target(thread_id="t"))).running:
        await asyncio.sleep(0.05)
    await worker.stop()
    await worker.start()
    result = await running
    assert (result.output.strip(), result.generation) == ("1", 1), fleet.logs()
    assert await count(client) == ("2", 1, "live")


@pytest.mark.short_grace
async def test_a_worker_gone_for_good_is_a_loss_that_is_told(
    fleet: Fleet, client: RemoteBackend
) -> None:
    session = await client.create_session(CreateSessionRequest(thread_id="t"))
    worker = fleet.named(session.worker)
    under_way = asyncio.create_task(
        client.execute(ExecuteRequest(thread_id="t", command="sleep 60"))
    )
    while not (await client.session(Target(thread_id="t"))).running:
        await asyncio.sleep(0.05)
    await worker.stop()
    killed_at = time.monotonic()
    # A call that may have begun there is never begun anew elsewhere.
    with pytest.raises(SessionLost):
        await under_way
    assert time.monotonic() - killed_at >= SHORT_GRACE_S, (
        "given up before the time of grace was over"
    )
    with pytest.raises(SessionLost):
        await client.execute(ExecuteRequest(session_id=session.session_id, command="true"))
    assert await count(client) == ("1", 2, "recreated")
    with pytest.raises(SessionLost):
        await client.execute(ExecuteRequest(session_id=session.session_id, command="true"))
    assert (await owner(fleet, client)) is not worker


@pytest.mark.short_grace
async def test_a_frozen_worker_is_superseded_and_gives_up_what_it_had(
    fleet: Fleet, client: RemoteBackend
) -> None:
    assert await count(client) == ("1", 1, "created")
    worker = await owner(fleet, client)
    worker.send(signal.SIGSTOP)
    await fleet.until(worker, Presence.GONE)
    assert await count(client) == ("1", 2, "recreated")
    worker.send(signal.SIGCONT)
    await fleet.until(worker, Presence.HERE)
    async with remote_of(worker) as direct:
        async with asyncio.timeout(60):
            while (await direct.sessions()).sessions:
                await asyncio.sleep(0.1)
    assert await count(client) == ("2", 2, "live")


@pytest.mark.short_grace
async def test_a_frozen_worker_does_not_bring_back_the_past_when_redis_forgets(
    fleet: Fleet, client: RemoteBackend
) -> None:
    assert await count(client) == ("1", 1, "created")
    old = await owner(fleet, client)
    old.send(signal.SIGSTOP)
    await fleet.until(old, Presence.GONE)
    assert await count(client) == ("1", 2, "recreated")
    new = await owner(fleet, client)
    new.send(signal.SIGSTOP)  # So that the other is the first to speak to an empty Redis.
    await fleet.coordinators[0].stop()  # It remembers who had the thread.
    await fleet.coordinators[0].start()
    await fleet.coordinators[0].ready()
    await fleet.redis.flush()
    old.send(signal.SIGCONT)
    await fleet.until(old, Presence.HERE)
    asked = asyncio.create_task(count(client))
    await asyncio.wait([asked], timeout=LEASE_S / 4)
    new.send(signal.SIGCONT)
    assert await asked == ("2", 2, "live"), fleet.logs()


def remote_of(worker: ServerProcess) -> RemoteBackend:
    """A worker reached around its coordinators, as only the fleet may."""
    return RemoteBackend(worker.url, api_key=KEY)


async def test_a_successor_of_a_frozen_worker_fences_it(
    fleet: Fleet, client: RemoteBackend
) -> None:
    assert await count(client) == ("1", 1, "created")
    frozen = await owner(fleet, client)
    frozen.send(signal.SIGSTOP)
    successor = fleet.process("worker", SANDBOX_WORKER_ID=frozen.name)
    await successor.start()
    await successor.ready()
    assert await count(client) == ("2", 1, "live")
    frozen.send(signal.SIGCONT)
    assert await frozen.ended() == 0, frozen.log()
    assert "superseded" in frozen.log()
    assert await count(client) == ("3", 1, "live")


async def test_without_redis_known_threads_are_served_until_the_lease_ends(
    fleet: Fleet, client: RemoteBackend
) -> None:
    assert await count(client) == ("1", 1, "created")
    fleet.redis.freeze()
    assert (await count(client))[0] == "2"
    worker = await owner(fleet, client)
    async with remote_of(worker) as direct:
        await refused(direct)
    fleet.redis.thaw()
    assert await count(client) == ("3", 1, "live")


async def refused(direct: RemoteBackend) -> None:
    """Returns when the worker does not serve any more."""
    async with asyncio.timeout(60):
        while True:
            try:
                await direct.session(Target(thread_id="t"))
            except RuntimeUnavailable:
                return
            await asyncio.sleep(0.1)


async def test_a_flushed_redis_learns_everything_again(fleet: Fleet, client: RemoteBackend) -> None:
    threads = [f"t{i}" for i in range(3)]
    for name in threads:
        await count(client, name)
    await fleet.redis.flush()
    answers = await asyncio.gather(*(count(client, name) for name in [*threads, "new"]))
    assert answers == [("2", 1, "live")] * 3 + [("1", 1, "created")], fleet.logs()


async def test_a_restarted_redis_learns_everything_again(
    fleet: Fleet, client: RemoteBackend
) -> None:
    await count(client)
    await fleet.redis.stop()
    await asyncio.sleep(LEASE_S + 1)  # Longer than a lease: nobody may serve by then.
    await fleet.redis.start()
    assert await count(client) == ("2", 1, "live")
    assert await count(client, "new") == ("1", 1, "created")


async def test_a_stream_goes_on_through_another_coordinator(
    fleet: Fleet, client: RemoteBackend
) -> None:
    second = fleet.process("coordinator")
    await second.start()
    await second.ready()
    command = "for i in $(seq 30); do echo line $i; sleep 0.1; done"
    text, killed = "", False
    async with (
        Balancer([fleet.coordinators[0], second]) as balancer,
        RemoteBackend(balancer.url) as through,
        contextlib.aclosing(
            through.stream(ExecuteRequest(thread_id="t", command=command))
        ) as events,
    ):
        async for event in events:
            if isinstance(event, OutputEvent):
                text += event.data
                if not killed and "line 5" in text:
                    killed = True
                    await fleet.coordinators[0].stop()
            if isinstance(event, ExitEvent):
                assert event.exit_code == 0
    assert text == "".join(f"line {i}\n" for i in range(1, 31))


async def test_new_threads_avoid_a_worker_that_drains(fleet: Fleet, client: RemoteBackend) -> None:
    first, second = fleet.workers
    await count(client)
    await fleet.store.ask_to_drain(first.name, Drain.LEAVE)
    async with asyncio.timeout(60):
        while (await client.health()).checks.get(f"worker {first.name}") == "ok":
            await asyncio.sleep(0.1)
    for i in range(4):
        await count(client, f"new-{i}")
        assert await owner(fleet, client, f"new-{i}") is second
    if await owner(fleet, client) is first:
        await client.cleanup(Target(thread_id="t"))
    assert await first.ended() == 0
    assert first.name not in str(await client.health())
    assert await fleet.boxes(first) == 0


async def test_a_worker_of_several_processes(redis_server: RedisServer, state_dir: Path) -> None:
    """Each is a worker to coordinators. One that is killed comes back, one that leaves does not."""
    fleet = Fleet(default_runtime(), state_dir, redis_server, grace_s=GRACE_S)
    try:
        worker = fleet.process("worker", SANDBOX_PROCESSES="2")
        await fleet.run([worker], [fleet.process("coordinator")])
        async with remote(fleet.coordinators[0]) as client:
            while len((await client.health()).checks) < 3:
                await asyncio.sleep(0.05)
            threads = [f"t{number}" for number in range(16)]  # Enough for both to get some.
            for thread_id in threads:
                assert await count(client, thread_id) == ("1", 1, "created")
            sessions = (await client.sessions()).sessions
            assert {s.worker for s in sessions} == {f"{worker.name}~0", f"{worker.name}~1"}

            os.kill(worker.children()[1], signal.SIGKILL)
            for thread_id in threads:
                assert await count(client, thread_id) == ("2", 1, "live")

            leaving = [s for s in sessions if s.worker == f"{worker.name}~1"]
            await fleet.store.ask_to_drain(f"{worker.name}~1", Drain.LEAVE)
            for session in leaving:
                await client.cleanup(Target(session_id=session.session_id))
            async with asyncio.timeout(60):
                while len(worker.children()) > 1:
                    await asyncio.sleep(0.05)
            assert any("process.left" in line for line in worker.lines())
            for session in leaving:
                assert await count(client, session.thread_id) == ("1", 2, "created")
    finally:
        await fleet.close()
