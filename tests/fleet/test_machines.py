"""Two engines, as two machines: one of them dies with all that is on it."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import SessionLost
from sandbox_sdk.protocol.models import ExecuteRequest, Session, Target
from sandbox_server.fleet.workers import Presence
from tests.fleet.fleet import SHORT_GRACE_S, Fleet, remote
from tests.fleet.redis_server import RedisServer
from tests.fleet.second_engine import can_be_had, second_engine

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not can_be_had(), reason="a second engine takes root and a first one"),
]


async def test_a_machine_dies_and_the_other_goes_on(
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
                assert (lost.generation, lost.session_state) == (2, "recreated")
                assert lost.exit_code == 1
                kept = await client.execute(
                    ExecuteRequest(thread_id=here.thread_id, command="cat f")
                )
                assert (kept.output, kept.generation, kept.session_state) == ("mine\n", 1, "live")
        finally:
            await fleet.close()


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
