"""Pods belong to no machine: a worker that starts again elsewhere has those of its name."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.protocol.models import ExecuteRequest, Target
from tests.contract.on_kubernetes import KUBECONFIG
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import Fleet, remote
from tests.fleet.redis_server import RedisServer

__all__ = ["redis_server"]
pytestmark = pytest.mark.timeout(300)


async def test_sessions_go_on_when_a_worker_starts_on_another_machine(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Killed with its machine: nothing of its state folder is left."""
    cluster = {"SANDBOX_KUBERNETES_KUBECONFIG": KUBECONFIG}
    fleet = Fleet("kubernetes", tmp_path, redis_server, grace_s=60)
    try:
        worker = fleet.process("worker", **cluster, SANDBOX_STATE_DIR=str(tmp_path / "first"))
        await fleet.run([worker], [fleet.process("coordinator")])
        async with remote(fleet.coordinators[0]) as client:
            await client.execute(ExecuteRequest(thread_id="t", command="x=7; echo kept > a"))
            waiting = ExecuteRequest(
                thread_id="t",
                command="until [ -e go ]; do sleep 0.1; done; echo went",
                background=True,
            )
            begun = await client.execute(waiting)
            before = await client.session(Target(thread_id="t"))
            await worker.stop()
            (tmp_path / "second").mkdir()
            worker.settings["SANDBOX_STATE_DIR"] = str(tmp_path / "second")
            await worker.start()
            await worker.ready()
            result = await client.execute(
                ExecuteRequest(thread_id="t", command="echo $x; cat a; touch go")
            )
            after = await client.session(Target(thread_id="t"))
            assert result.output == "7\nkept\n", worker.log()
            assert (after.session_id, after.generation) == (before.session_id, before.generation)
            async with asyncio.timeout(30):
                while (
                    ended := await client.result(Target(thread_id="t"), begun.command_id)
                ).exit_code is None:
                    await asyncio.sleep(0.1)
        assert ended.output == "went\n"
    finally:
        await fleet.close()
