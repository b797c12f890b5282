"""The engine is restarted in the middle of a command: the caller learns what became of it."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import SessionLost
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from tests.fleet.second_engine import can_be_had, second_engine
from tests.server_process import ServerProcess

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not can_be_had(), reason="a second engine takes root and a first one"),
]
COMMAND = "echo begun >> log; while [ ! -e go ]; do sleep 0.1; done; cat log"


async def test_a_command_whose_engine_is_restarted(state_dir: Path) -> None:
    """Engines differ: some keep boxes that are removed when they end, some do not (20.10). Either
    the command goes on, and its result arrives, or the box is lost, and that is told."""
    async with second_engine() as machine:
        server = ServerProcess("docker", state_dir, {"DOCKER_HOST": machine.host})
        await server.start()
        try:
            await server.ready()
            async with RemoteBackend(server.url, retry_for_s=60) as client, asyncio.timeout(120):
                request = ExecuteRequest(thread_id="t", command=COMMAND, timeout=120)
                running = asyncio.create_task(client.execute(request))
                await until_running(client)
                await machine.restart()
                after = await client.execute(ExecuteRequest(thread_id="t", command="touch go"))
                if after.generation == 1:
                    assert (await running).output == "begun\n", server.log()
                else:
                    assert (after.generation, after.session_state) == (2, "recreated")
                    with pytest.raises(SessionLost):
                        await running
                fresh = await client.execute(ExecuteRequest(thread_id="new", command="echo new"))
                assert fresh.output == "new\n"
        finally:
            await server.stop()


async def until_running(client: RemoteBackend) -> None:
    async with asyncio.timeout(60):
        while True:
            sessions = (await client.sessions()).sessions
            if sessions and (await client.session(Target(thread_id="t"))).running:
                return
            await asyncio.sleep(0.05)
