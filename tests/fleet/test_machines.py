"""Two engines, as two machines: one is restarted, and later dies with all that is on it."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import SessionLost
from sandbox_sdk.protocol.models import ExecuteRequest, Session, Target
from sandbox_server.fleet.workers import Presence
from tests.fleet.fleet import SHORT_GRACE_S, Fleet, remote
from tests.fleet.redis_server import RedisServer
from tests.fleet.second_engine import SecondEngine, can_be_had, second_engine

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not can_be_had(), reason="a second engine takes root and a first one"),
]


@pytest.mark.rest
async def test_an_engine_is_restarted_and_later_its_machine_dies(
    redis_server: RedisServer, state_dir: Path
) -> None:
    fleet = Fleet("docker", state_dir, redis_server, grace_s=SHORT_GRACE_S)
    async with second_engine() as machine:
        try:
            first, coordinator = fleet.process("worker"), fleet.process("coordinator")
            second = fleet.process("worker", DOCKER_HOST=machine.host)
            await fleet.run([first, second], [coordinator])
            async with remote(coordinator) as client:
                here, there = await one_on_each(client, first.name, second.name)
                await through_a_restart(client, machine, there)
                here, there = await one_on_each(client, first.name, second.name)
                await second.stop()
                await machine.switch_off()
                await fleet.until(second, Presence.GONE)
                with pytest.raises(SessionLost):
                    await client.execute(
                        ExecuteRequest(session_id=there.session_id, command="true")
                    )
                lost = await client.execute(
                    ExecuteRequest(thread_id=there.thread_id, command="cat f")
                )
                assert (lost.generation, lost.session_state) == (there.generation + 1, "recreated")
                assert lost.exit_code == 1
                kept = await client.execute(
                    ExecuteRequest(thread_id=here.thread_id, command="cat f")
                )
                assert kept.output == "mine\n"
                assert (kept.generation, kept.session_state) == (here.generation, "live")
        finally:
            await fleet.close()


async def through_a_restart(client: RemoteBackend, machine: SecondEngine, there: Session) -> None:
    """Engines differ: some keep boxes that are removed when they end, some do not (20.10). Either
    the command goes on, and its result arrives, or the box is lost, and that is told."""
    command = "echo begun >> log; while [ ! -e go ]; do sleep 0.1; done; cat log"
    request = ExecuteRequest(session_id=there.session_id, command=command, timeout=120)
    async with asyncio.timeout(120):
        running = asyncio.create_task(client.execute(request))
        while not (await client.session(Target(session_id=there.session_id))).running:
            await asyncio.sleep(0.05)
        await machine.restart()
        after = ExecuteRequest(thread_id=there.thread_id, command="touch go")
        result = await client.execute(after)
        if result.generation == there.generation:
            assert (await running).output == "begun\n"
            return
        assert (result.generation, result.session_state) == (there.generation + 1, "recreated")
        with pytest.raises(SessionLost):
            await running


async def one_on_each(client: RemoteBackend, first: str, second: str) -> tuple[Session, Session]:
    """A session with a file on each of two workers."""
    found: dict[str, Session] = {}
    async with asyncio.timeout(120):
        number = 0
        while found.keys() != {first, second}:
            number += 1
            thread_id = f"conv-{number}"
            await client.execute(ExecuteRequest(thread_id=thread_id, command="echo mine > f"))
            session = await client.session(Target(thread_id=thread_id))
            found.setdefault(session.worker, session)
    return found[first], found[second]
