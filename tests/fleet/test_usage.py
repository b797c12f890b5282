"""Usage in a fleet: workers add up, and one that is gone has used what it has."""

from pathlib import Path

from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_server.fleet.workers import Presence
from tests.fleet.fleet import Fleet, default_runtime, remote, running_fleet
from tests.fleet.redis_server import RedisServer

SHORT_S = 3.0


async def commands_of(fleet: Fleet) -> int:
    async with remote(fleet.coordinators[0]) as client:
        (row,) = (await client.usage(by="total")).rows
        return row.commands


async def test_a_worker_that_is_gone_has_used_what_it_has(
    redis_server: RedisServer, state_dir: Path
) -> None:
    async with running_fleet(
        default_runtime(), state_dir, redis_server, workers=2, grace_s=SHORT_S
    ) as fleet:
        async with remote(fleet.coordinators[0]) as client:
            workers = {}
            for number in range(20):
                request = CreateSessionRequest(thread_id=f"t{number}")
                workers[f"t{number}"] = (await client.create_session(request)).worker
                if len(set(workers.values())) == 2:
                    break
            for thread in workers:
                await client.execute(ExecuteRequest(thread_id=thread, command="true"))
            assert len(set(workers.values())) == 2
            found = await client.usage(by="thread")
            assert {row.thread_id: row.commands for row in found.rows} == dict.fromkeys(workers, 1)
            assert found.unreachable == []
        assert await commands_of(fleet) == len(workers)
        gone = fleet.workers[0]
        await gone.stop()
        await fleet.until(gone, Presence.GONE)
        assert await commands_of(fleet) == len(workers)
