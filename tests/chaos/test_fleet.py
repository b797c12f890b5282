"""A fleet under load while its parts are killed, frozen and made to forget, at random."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import Target
from sandbox_server.fleet.workers import Drain
from tests import lanes
from tests.chaos.witness import Witness
from tests.fleet.fleet import (
    LEASE_S,
    Balancer,
    Fleet,
    default_runtime,
    running_fleet,
)
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess

ROUNDS = lanes.rounds(8, "CHAOS_ROUNDS", main=4)
THREADS = 8
GRACE_S = 10.0


class Trouble:
    """What can happen to a fleet. Every trouble ends with all processes running again."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self._fleet = fleet
        self._chance = chance
        self.made: Counter[str] = Counter()

    async def make(self) -> None:
        kinds = [
            self.kill_worker,
            self.kill_worker,
            self.kill_coordinator,
            self.freeze_worker_for_a_moment,
            self.freeze_worker_for_long,
            self.restart_redis,
            self.flush_redis,
            self.freeze_redis,
        ]
        kind = self._chance.choice(kinds)
        self.made[kind.__name__] += 1
        await kind()

    def _worker(self) -> ServerProcess:
        return self._chance.choice(self._fleet.workers)

    async def kill_worker(self) -> None:
        worker = self._worker()
        await worker.stop()
        await asyncio.sleep(self._chance.uniform(0, LEASE_S))
        await worker.start()
        await worker.ready()

    async def kill_coordinator(self) -> None:
        coordinator = self._chance.choice(self._fleet.coordinators)
        await coordinator.stop()
        await asyncio.sleep(self._chance.uniform(0, 1))
        await coordinator.start()
        await coordinator.ready()

    async def freeze_worker_for_a_moment(self) -> None:
        await self._freeze(self._worker(), self._chance.uniform(0, LEASE_S))

    async def freeze_worker_for_long(self) -> None:
        await self._freeze(self._worker(), LEASE_S + GRACE_S + self._chance.uniform(0, 3))

    async def _freeze(self, process: ServerProcess, for_s: float) -> None:
        process.send(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        process.send(signal.SIGCONT)

    async def restart_redis(self) -> None:
        await self._fleet.redis.stop()
        await asyncio.sleep(self._chance.uniform(0, 2 * LEASE_S))
        await self._fleet.redis.start()

    async def flush_redis(self) -> None:
        await self._fleet.redis.flush()

    async def freeze_redis(self) -> None:
        self._fleet.redis.freeze()
        await asyncio.sleep(self._chance.uniform(0, 2 * LEASE_S))
        self._fleet.redis.thaw()


@pytest.mark.rounds
@pytest.mark.timeout(3600)
async def test_no_answer_breaks_the_contract(
    redis_server: RedisServer, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "7"))
    runtime = default_runtime()
    async with (
        running_fleet(
            runtime, state_dir, redis_server, workers=3, coordinators=2, grace_s=GRACE_S
        ) as fleet,
        Balancer(fleet.coordinators) as balancer,
        RemoteBackend(balancer.url) as client,
    ):
        witness = Witness(client, [f"conv-{i}" for i in range(THREADS)])
        trouble = Trouble(fleet, random.Random(seed))
        async with witness.watching():
            for _ in range(ROUNDS):
                await asyncio.sleep(1)
                await trouble.make()
            await asyncio.sleep(LEASE_S)
        with capsys.disabled():
            print(f"\n{runtime}, seed {seed}: {dict(trouble.made)}\n{witness.figures()}")
        assert witness.judged() == [], fleet.logs()
        await clean_up(client, witness.threads)
        for worker in fleet.workers:
            await worker.stop(signal.SIGTERM)
            worker.settings["SANDBOX_DESTROY_ON_EXIT"] = "1"
            await worker.start()
            await worker.ready()
            await worker.stop(signal.SIGTERM)
            assert await fleet.boxes(worker) == 0, worker.log()


async def clean_up(client: RemoteBackend, threads: list[str]) -> None:
    for thread in threads:
        for _ in range(20):
            try:
                await client.cleanup(Target(thread_id=thread))
                break
            except SandboxError as exc:
                if exc.code in ("session_not_found", "session_lost"):
                    break


@pytest.mark.timeout(600)
async def test_a_rolling_upgrade_fails_no_request(
    redis_server: RedisServer, state_dir: Path
) -> None:
    async with (
        running_fleet(default_runtime(), state_dir, redis_server, workers=3, grace_s=90) as fleet,
        RemoteBackend(fleet.coordinators[0].url, retry_for_s=0) as client,
    ):
        witness = Witness(client, [f"conv-{i}" for i in range(THREADS)])
        async with witness.watching():
            for worker in fleet.workers:
                await asyncio.sleep(1)
                assert await fleet.store.ask_to_drain(worker.name, Drain.RESTART)
                assert await worker.ended() == 0, worker.log()
                await worker.start()
                await worker.ready()
            await asyncio.sleep(2)
        assert witness.judged() == [], fleet.logs()
        assert [a for a in witness.answers if a.error] == [], fleet.logs()
        assert {a.generation for a in witness.answers} == {1}
