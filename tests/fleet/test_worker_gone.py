"""A worker that never comes back, and threads that persist: they go on elsewhere."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.fleet.workers import Presence
from tests.contract.conftest import make_runtime
from tests.fleet.fleet import SHORT_GRACE_S, Fleet, default_runtime, remote
from tests.fleet.redis_server import RedisServer
from tests.s3_server import S3Server

pytestmark = pytest.mark.timeout(300)


async def test_a_thread_goes_on_on_another_worker(
    redis_server: RedisServer, s3: S3Server, state_dir: Path
) -> None:
    fleet = Fleet(default_runtime(), state_dir, redis_server, grace_s=SHORT_GRACE_S)
    shared = {"SANDBOX_CHECKPOINTS": s3.url_of("gone"), **s3.variables}
    try:
        workers = [fleet.process("worker", **shared) for _ in range(2)]
        await fleet.run(workers, [fleet.process("coordinator")])
        async with remote(fleet.coordinators[0]) as client:
            wanted = CreateSessionRequest(
                thread_id="t", persist=True, checkpoint_every="2 commands"
            )
            await client.create_session(wanted)
            for number in (1, 2):
                command = f"x={number}; echo {number} > a"
                await client.execute(ExecuteRequest(thread_id="t", command=command))
            async with asyncio.timeout(30):
                while not (found := (await client.checkpoints(thread_id="t")).checkpoints):
                    await asyncio.sleep(0.1)
            await client.execute(ExecuteRequest(thread_id="t", command="x=3; echo 3 > a"))
            before = await client.session(Target(thread_id="t"))
            await machine_gone(fleet, before.worker, state_dir)
            result = await client.execute(ExecuteRequest(thread_id="t", command="echo $x; cat a"))
            after = await client.session(Target(thread_id="t"))
        assert (result.output, result.session_state) == ("2\n2\n", "resumed")
        assert after.worker != before.worker
        assert result.resumed is not None
        assert result.resumed.checkpoint_id == found[0].checkpoint_id
        assert not result.resumed.complete
        assert result.resumed.age_s > 0
    finally:
        await fleet.close()


async def machine_gone(fleet: Fleet, worker_id: str, state_dir: Path) -> None:
    worker = fleet.named(worker_id)
    await worker.stop()
    async with make_runtime(fleet.runtime, state_dir) as boxes:
        for box in await boxes.boxes(worker.name):
            await box.destroy()
    await fleet.until(worker, Presence.GONE)
