"""A worker that is gone: others take over its pods, and threads go on."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, SessionInfo, Target
from sandbox_server.fleet.workers import Presence
from tests import lanes
from tests.contract.on_kubernetes import KUBECONFIG
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import SHORT_GRACE_S, Fleet, remote
from tests.fleet.redis_server import RedisServer
from tests.kubernetes.conftest import Kubectl
from tests.server_process import ServerProcess

__all__ = ["redis_server"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.rest]

ROUNDS = lanes.rounds(10, "SANDBOX_TEST_ROUNDS", main=2)
THREADS = 4


@contextlib.asynccontextmanager
async def fleet_of(
    redis: RedisServer,
    folder: Path,
    kubectl: Kubectl,
    *,
    workers: int = 2,
    settings: Mapping[str, str] = MappingProxyType({}),
    patience_s: int = 90,
) -> AsyncIterator[tuple[Fleet, RemoteBackend]]:
    """Each worker with a state folder of its own, as on machines of their own."""
    fleet = Fleet("kubernetes", folder, redis, grace_s=SHORT_GRACE_S)
    cluster = {
        "SANDBOX_KUBERNETES_KUBECONFIG": KUBECONFIG,
        "SANDBOX_KUBERNETES_NAMESPACE": kubectl.namespace,
        "SANDBOX_POOL_SIZE": "0",
        "SANDBOX_MAX_POOL_SIZE": "0",
        **settings,
    }
    try:
        made = []
        for number in range(workers):
            (folder / f"state-{number}").mkdir()
            state = {"SANDBOX_STATE_DIR": str(folder / f"state-{number}")}
            made.append(fleet.process("worker", **cluster, **state))
        patience = {"SANDBOX_PATIENCE": str(patience_s)}
        await fleet.run(made, [fleet.process("coordinator", **patience)])
        async with remote(fleet.coordinators[0]) as client:
            yield fleet, client
    finally:
        await fleet.close()


async def run(client: RemoteBackend, command: str, thread: str = "t", **options: object) -> str:
    request = ExecuteRequest.model_validate({"thread_id": thread, "command": command, **options})
    return (await client.execute(request)).output


async def session(client: RemoteBackend, thread: str = "t") -> SessionInfo:
    return await client.session(Target(thread_id=thread))


def box_owners(kubectl: Kubectl) -> dict[str, str]:
    """The worker of every pod, by box."""
    return {
        pod["metadata"]["labels"]["sandbox.box"]: pod["metadata"]["labels"]["sandbox.owner"]
        for pod in kubectl.pods()
        if not pod["metadata"].get("deletionTimestamp")
    }


async def begin(client: RemoteBackend, thread: str = "t") -> str:
    """Files, state of the shell, and a command that runs on. Returns its id."""
    await run(client, "mkdir d; cd d; x=7; export y=8; echo kept > a", thread)
    begun = await client.execute(
        ExecuteRequest(
            thread_id=thread,
            command="echo before; until [ -e go ]; do sleep 0.1; done; echo after",
            background=True,
        )
    )
    return begun.command_id


async def check(client: RemoteBackend, command_id: str, thread: str = "t") -> None:
    """All of it is there, and goes on."""
    assert await run(client, "pwd; echo $x; printenv y; cat a", thread) == (
        "/workspace/d\n7\n8\nkept\n"
    )
    running = await client.result(Target(thread_id=thread), command_id)
    assert (running.output, running.exit_code) == ("before\n", None)
    await run(client, "touch go", thread)
    async with asyncio.timeout(60):
        while (
            ended := await client.result(Target(thread_id=thread), command_id)
        ).exit_code is None:
            await asyncio.sleep(0.1)
    assert ended.output == "before\nafter\n"


@pytest.mark.parametrize("called_for", ["at once", "later"])
async def test_threads_go_on_when_their_worker_is_killed(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl, called_for: str
) -> None:
    """Called for at once, the call takes the session over; else a worker that looks does."""
    async with fleet_of(redis_server, tmp_path, kubectl) as (fleet, client):
        begun = await begin(client)
        before = await session(client)
        await fleet.named(before.worker).stop()
        if called_for == "later":
            (other,) = (worker for worker in fleet.workers if worker.name != before.worker)
            async with asyncio.timeout(60):
                while set(box_owners(kubectl).values()) != {other.name}:
                    await asyncio.sleep(0.1)
        await check(client, begun)
        after = await session(client)
        assert (after.session_id, after.generation) == (before.session_id, before.generation)
        assert after.worker != before.worker, fleet.logs()
        by_session = Target(session_id=before.session_id)
        assert (await client.session(by_session)).worker == after.worker
        assert list(box_owners(kubectl).values()) == [after.worker]
        await client.cleanup(Target(thread_id="t"))
        assert box_owners(kubectl) == {}


async def test_a_call_for_the_session_takes_it_over(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    """Also one that could not begin a session."""
    async with fleet_of(redis_server, tmp_path, kubectl) as (fleet, client):
        wanted = CreateSessionRequest(thread_id="t", metadata={"of": "me"}, lifetime_s=600)
        before = await client.create_session(wanted)
        gone = fleet.named((await session(client)).worker)
        await gone.stop()
        await fleet.until(gone, Presence.GONE)
        after = await client.session(Target(session_id=before.session_id))
        assert after.worker != gone.name
        assert after.metadata == {"of": "me"}
        assert after.end_at == before.end_at


async def test_a_worker_that_comes_back_gives_up_what_others_have(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    """Killed, and started again under its name, with its own records of the pod."""
    async with fleet_of(redis_server, tmp_path, kubectl) as (fleet, client):
        begun = await begin(client)
        before = await session(client)
        gone = fleet.named(before.worker)
        await gone.stop()
        await fleet.until(gone, Presence.GONE)
        after = await session(client)
        assert after.worker != before.worker
        await gone.start()
        await gone.ready()
        await check(client, begun)
        assert (await session(client)).worker == after.worker
        assert list(box_owners(kubectl).values()) == [after.worker]
        async with remote(gone) as direct:
            assert (await direct.health()).active_sessions == 0


async def test_a_worker_that_was_frozen_gives_up_what_others_have(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    """It has the session in its memory, and an open stream to the pod."""
    async with fleet_of(redis_server, tmp_path, kubectl) as (fleet, client):
        begun = await begin(client)
        before = await session(client)
        frozen = fleet.named(before.worker)
        frozen.send(signal.SIGSTOP)
        await fleet.until(frozen, Presence.GONE)
        after = await session(client)
        assert after.worker != before.worker
        frozen.send(signal.SIGCONT)
        async with remote(frozen) as direct:
            async with asyncio.timeout(60):
                while (await direct.health()).active_sessions:
                    await asyncio.sleep(0.1)
        await check(client, begun)
        assert list(box_owners(kubectl).values()) == [after.worker]


async def test_warm_pods_of_a_worker_that_is_gone_are_used(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    sizes = {"SANDBOX_POOL_SIZE": "2", "SANDBOX_MAX_POOL_SIZE": "8"}
    async with fleet_of(redis_server, tmp_path, kubectl, settings=sizes) as (fleet, client):
        gone, other = fleet.workers
        async with asyncio.timeout(120):
            while len(kubectl.json("get", "pods", "-l", "sandbox.warm")["items"]) < 4:
                await asyncio.sleep(0.1)
        pods = set(box_owners(kubectl))
        await gone.stop()
        async with asyncio.timeout(60):
            while set(box_owners(kubectl).values()) != {other.name}:
                await asyncio.sleep(0.1)
        assert set(box_owners(kubectl)) <= pods
        async with remote(fleet.coordinators[0]) as client:
            assert await run(client, "echo hi") == "hi\n"


async def test_the_pod_is_gone_too(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    """Then the loss is told, and the thread begins anew."""
    async with fleet_of(redis_server, tmp_path, kubectl) as (fleet, client):
        await begin(client)
        before = await session(client)
        await fleet.named(before.worker).stop()
        kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        request = ExecuteRequest(thread_id="t", command="ls /workspace")
        result = await client.execute(request)
        assert (result.output, result.session_state) == ("", "recreated")
        assert (await session(client)).generation == before.generation + 1


@pytest.mark.rounds
async def test_workers_die_and_come_back_at_random(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    """No session is lost or doubled, and no pod is left behind."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    async with fleet_of(redis_server, tmp_path, kubectl, workers=3) as (fleet, client):
        threads = [f"t{number}" for number in range(THREADS)]
        first = {}
        for thread in threads:
            await run(client, "n=0; echo 0 > n", thread)
            first[thread] = await session(client, thread)
        down: list[ServerProcess] = []
        for turn in range(1, ROUNDS + 1):
            await one_fault(fleet, down, chance)
            outputs = await asyncio.gather(
                *(run(client, "echo $((++n)) >> n; tail -1 n", each) for each in threads)
            )
            assert outputs == [f"{turn}\n"] * THREADS, (seed, turn, fleet.logs())
        for worker in down:
            await worker.start()
            await worker.ready()
        for thread in threads:
            now = await session(client, thread)
            assert now.session_id == first[thread].session_id, (seed, fleet.logs())
        pods = box_owners(kubectl)
        assert len(pods) == THREADS, (seed, pods, fleet.logs())
        for thread in threads:
            await client.cleanup(Target(thread_id=thread))
        assert box_owners(kubectl) == {}


async def one_fault(fleet: Fleet, down: list[ServerProcess], chance: random.Random) -> None:
    """Kill one of those that run, for good or for a moment, or let one come back; one stays."""
    up = [worker for worker in fleet.workers if worker not in down]
    if len(up) > 1 and (not down or chance.random() < 0.6):
        victim = chance.choice(up)
        await victim.stop()
        if chance.random() < 0.4:
            await asyncio.sleep(chance.random() * 2 * SHORT_GRACE_S)
            await victim.start()
        else:
            down.append(victim)
    else:
        back = down.pop(chance.randrange(len(down)))
        await back.start()
