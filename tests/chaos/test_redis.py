"""A fleet under load while its Redis is stopped, killed, emptied and frozen, at random.

The workers are well all the time. So no session may be lost, nothing may be done twice, and when
all is over nothing may be left.
"""

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes
from tests import lanes
from tests.chaos.test_fleet import clean_up
from tests.chaos.witness import Witness
from tests.fleet.fleet import LEASE_S, Fleet, default_runtime, running_fleet
from tests.fleet.redis_server import RedisServer

ROUNDS = lanes.rounds(6, "CHAOS_ROUNDS")
THREADS = 8
GRACE_S = 20.0
PATIENCE_S = 120.0


class Flapping:
    """What can happen to a Redis. In the end it runs again, with what it had or without."""

    def __init__(self, redis: RedisServer, chance: random.Random) -> None:
        self._redis = redis
        self._chance = chance
        self.made: Counter[str] = Counter()

    async def make(self) -> None:
        kinds = [self.stop, self.kill, self.empty, self.flush, self.freeze, self.flap]
        kind = kinds[self.made.total()] if self.made.total() < len(kinds) else None
        kind = kind or self._chance.choice(kinds)
        self.made[kind.__name__] += 1
        await kind()

    async def stop(self) -> None:
        await self._redis.stop(politely=True)
        await self._pause(2 * LEASE_S)
        await self._redis.start()

    async def kill(self) -> None:
        await self._redis.stop()
        await self._pause(2 * LEASE_S)
        await self._redis.start()

    async def empty(self) -> None:
        await self._redis.stop()
        shutil.rmtree(self._redis.folder)
        await self._pause(2 * LEASE_S)
        await self._redis.start()

    async def flush(self) -> None:
        await self._redis.flush()

    async def freeze(self) -> None:
        self._redis.freeze()
        await self._pause(3 * LEASE_S)
        self._redis.thaw()

    async def flap(self) -> None:
        for _ in range(3):
            await self._redis.stop()
            await self._redis.start()
            await self._pause(LEASE_S / 3)

    async def _pause(self, at_most_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(0, at_most_s))


class Churn:
    """Sessions that are made, used and ended, one after the other."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._stop = asyncio.Event()
        self.ended = 0
        self.breaches: list[str] = []

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator["Churn"]:
        churning = asyncio.create_task(self._churn())
        try:
            yield self
        finally:
            self._stop.set()
            await churning

    async def _churn(self) -> None:
        while not self._stop.is_set():
            try:
                session = await self._sandboxes.create_session(CreateSessionRequest())
            except RuntimeUnavailable:
                continue
            await self._insist(session.session_id)
            self.ended += 1

    async def _insist(self, session_id: str) -> None:
        target = Target(session_id=session_id)
        request = ExecuteRequest(
            session_id=session_id, command="echo x >> f; wc -l < f", idempotency_key="once"
        )
        for call in (
            lambda: self._sandboxes.execute(request),
            lambda: self._sandboxes.cleanup(target),
        ):
            while True:
                try:
                    answer = await call()
                    if getattr(answer, "output", "1\n") != "1\n":
                        self.breaches.append(f"{session_id}: ran twice")
                    break
                except RuntimeUnavailable:
                    await asyncio.sleep(0.1)


@pytest.mark.rounds
@pytest.mark.timeout(300 + 60 * ROUNDS)
async def test_nothing_is_lost_doubled_or_left(
    tmp_path: Path, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "11"))
    runtime = default_runtime()
    redis = RedisServer(tmp_path / "redis", persistent=True)
    await redis.start()
    async with (
        running_fleet(runtime, state_dir, redis, workers=2, grace_s=GRACE_S) as fleet,
        RemoteBackend(fleet.coordinators[0].url) as client,
    ):
        witness = Witness(client, [f"conv-{i}" for i in range(THREADS)])
        churn, flapping = Churn(client), Flapping(redis, random.Random(seed))
        async with witness.watching(), churn.going_on():
            await until_all_have_begun(witness)
            for _ in range(ROUNDS):
                await asyncio.sleep(1)
                await flapping.make()
            await until_served(client)
        with capsys.disabled():
            print(f"\n{runtime}, Redis flaps, seed {seed}: {dict(flapping.made)}")
            print(f"{witness.figures()}; {churn.ended} more sessions ended")
        assert witness.judged() + churn.breaches == [], fleet.logs()
        lives = {answer.generation for answer in witness.answers if answer.error is None}
        assert lives == {1}, fleet.logs()
        await clean_up(client, witness.threads)
        await nothing_left(fleet, client)
    await redis.stop()


async def until_all_have_begun(witness: Witness) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while {answer.thread for answer in witness.answers} != {*witness.threads}:
            await asyncio.sleep(0.05)


async def until_served(client: Sandboxes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.execute(ExecuteRequest(thread_id="conv-0", command="true"))
                return
            except RuntimeUnavailable:
                await asyncio.sleep(0.1)


async def nothing_left(fleet: Fleet, client: Sandboxes) -> None:
    """No session, no box but a warm one a worker, and no key in Redis that would stay."""
    async with asyncio.timeout(PATIENCE_S):
        while (await client.sessions()).sessions:
            await asyncio.sleep(0.1)
        while any([await fleet.boxes(worker) > 2 for worker in fleet.workers]):
            await asyncio.sleep(0.1)
        # An end that Redis could not be told is told with the next look at things.
        while await fleet.redis.keys_without_ttl() != [fleet.store.workers_key]:
            await asyncio.sleep(0.1)
