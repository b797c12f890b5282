"""Volumes in a fleet: what needs one goes to the worker that has it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import Conflict, VolumeNotFound
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    CreateSessionRequest,
    ExecuteRequest,
    RestoreRequest,
    Session,
    Target,
    checked,
)
from tests.contract.conftest import make_runtime
from tests.fleet.fleet import GRACE_S, Fleet, default_runtime, remote
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess


async def make(client: RemoteBackend, thread: str, *names: str, mode: str = "rw") -> Session:
    volumes = [{"name": name, "path": name, "mode": mode} for name in names]
    wanted = checked(CreateSessionRequest, thread_id=thread, volumes=volumes)
    return await client.create_session(wanted)


async def run(client: RemoteBackend, thread: str, command: str) -> str:
    return (await client.execute(ExecuteRequest(thread_id=thread, command=command))).output


async def on_both(client: RemoteBackend) -> dict[str, str]:
    """A volume on each of two workers, by worker."""
    found: dict[str, str] = {}
    for number in range(40):
        made = await make(client, f"t-{number}", f"v-{number}")
        await client.cleanup(Target(thread_id=made.thread_id))
        if found.setdefault(made.worker, f"v-{number}") != f"v-{number}":
            await client.delete_volume(f"v-{number}")
        if len(found) == 2:
            return found
    raise AssertionError("all on one worker")


@pytest.fixture
async def fleet(redis_server: RedisServer, state_dir: Path) -> AsyncIterator[Fleet]:
    made = Fleet(default_runtime(), state_dir, redis_server, grace_s=GRACE_S)
    try:
        await made.start(workers=2)
        yield made
    finally:
        await made.close()


async def test_a_volume_is_found_again(fleet: Fleet) -> None:
    async with remote(fleet.coordinators[0]) as client:
        there = await on_both(client)
        listed = {each.name: each.worker for each in (await client.volumes()).volumes}
        assert {worker: name for name, worker in listed.items()} == there
        for worker, name in there.items():
            for number in range(3):
                made = await make(client, f"{name}-{number}", name)
                assert made.worker == worker
                assert await run(client, made.thread_id, f"echo {number} >> {name}/a") == ""
                with pytest.raises(Conflict, match="is in use"):
                    await make(client, "other", name)
                await client.cleanup(Target(thread_id=made.thread_id))
            made = await make(client, "last", name, mode="ro")
            assert await run(client, "last", f"cat {name}/a") == "0\n1\n2\n"
            await client.cleanup(Target(thread_id="last"))
        with pytest.raises(Conflict, match="are on different workers"):
            await make(client, "both", *there.values())
        with pytest.raises(Conflict, match="there is a volume"):
            await client.create_volume(next(iter(listed)))
        for name in listed:
            await client.delete_volume(name)
        with pytest.raises(VolumeNotFound):
            await client.delete_volume(next(iter(listed)))


async def test_a_thread_comes_back_to_its_volume(fleet: Fleet, state_dir: Path) -> None:
    """Even where another worker has more room, and when it goes back to a checkpoint."""
    async with remote(fleet.coordinators[0]) as client:
        made = await make(client, "t", "data")
        await run(client, "t", "echo kept > data/a")
        taken = await client.checkpoint(CheckpointRequest(thread_id="t"))
        worker = fleet.named(made.worker)
        await lose_box(fleet, worker, state_dir)
        assert await run(client, "t", "cat data/a") == "kept\n"
        assert (await client.session(Target(thread_id="t"))).worker == made.worker
        back = await client.restore(
            RestoreRequest(thread_id="t", checkpoint_id=taken.checkpoint_id)
        )
        assert (back.worker, [each.name for each in back.volumes]) == (made.worker, ["data"])
        assert await run(client, "t", "cat data/a") == "kept\n"
        # While its worker is away the thread waits, and gets no empty volume elsewhere.
        await worker.stop()
        waiting = asyncio.create_task(run(client, "t", "cat data/a"))
        await asyncio.sleep(1)
        assert not waiting.done()
        await worker.start()
        assert await waiting == "kept\n"
        await client.cleanup(Target(thread_id="t"))
        await client.delete_volume("data")


async def lose_box(fleet: Fleet, worker: ServerProcess, state_dir: Path) -> None:
    async with make_runtime(fleet.runtime, state_dir) as boxes:
        for box in await boxes.boxes(worker.name):
            await box.destroy()
