"""The pool over real boxes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import Capacity, RuntimeUnavailable
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.pool import Pool
from sandbox_server.pool.warm import WarmBox
from sandbox_server.runtime.agent import BoxAgent, BoxState
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Runtime
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_server.sessions.ledger import Ledger
from tests.contract import conftest as contract
from tests.run import run_owner

SPEC = BoxSpec(owner=run_owner(f"pool-{os.getpid()}"), deadman_s=120)
"""Tests run in several processes, and on docker all of them see one engine."""
SETTINGS = PoolSettings(size=2, min_size=1, max_size=4, concurrency=2, tick_s=0.05)

state_dir = contract.state_dir
OpenPool = Callable[..., AbstractAsyncContextManager[Pool]]


class Flaky(Runtime):
    """A real runtime whose next starts fail, or take until they are let go."""

    def __init__(self, real: Runtime) -> None:
        self._real = real
        self.name = real.name
        self.failing = 0
        self.attempts = 0
        self.made: list[Box] = []
        self.open = asyncio.Event()
        self.open.set()

    async def create(self, spec: BoxSpec) -> Box:
        self.attempts += 1
        await self.open.wait()
        if self.failing:
            self.failing -= 1
            raise RuntimeUnavailable("the engine is on fire")
        box = await self._real.create(spec)
        self.made.append(box)
        return box

    async def boxes(self, owner: str) -> list[Box]:
        return await self._real.boxes(owner)

    async def enforcement(self) -> Enforcement:
        return await self._real.enforcement()

    async def close(self) -> None:
        await self._real.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=[name for name in contract.RUNTIMES if name != "gvisor"])
async def runtime(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[Flaky]:
    async with Flaky(contract.make_runtime(request.param, state_dir)) as made:
        assert isinstance(made, Flaky)
        yield made
        assert await made.boxes(SPEC.owner) == []


@pytest.fixture
async def stack(runtime: Flaky) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def open_pool(runtime: Flaky) -> OpenPool:
    """Opens pools that destroy their boxes in the end."""

    @asynccontextmanager
    async def open_pool(
        *,
        adopt: Sequence[Box] = (),
        connect: Callable[[Box], BoxAgent] = lambda box: box.agent(),
        room: Callable[[], int] = lambda: 100,
        clock: Callable[[], float] = time.monotonic,
        **changes: Any,
    ) -> AsyncIterator[Pool]:
        settings = replace(SETTINGS, **changes)
        pool = Pool(
            runtime, SPEC, settings, connect=connect, room=room, notes=Ledger(), clock=clock
        )
        for box in adopt:
            pool.adopt(box, box.agent(epoch=2))
        try:
            async with pool:
                yield pool
                await pool.close(destroy=True)
        finally:
            await asyncio.gather(*(box.destroy() for box in runtime.made))

    return open_pool


@pytest.fixture
def claim(stack: AsyncExitStack) -> Callable[[Pool], Any]:
    """Claims a box and destroys it after the test."""

    async def claim(pool: Pool) -> WarmBox:
        warm = await pool.claim({})
        stack.push_async_callback(warm.destroy)
        return warm

    return claim


async def until(condition: Callable[[], object], *, within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def alive(runtime: Flaky) -> int:
    return len(await runtime.boxes(SPEC.owner))


async def test_it_warms_up_and_a_claim_is_a_pop(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    async with open_pool() as pool:
        await until(lambda: pool.warm == 2 and not pool.starting)
        assert repr(pool) == f"<Pool {runtime.name} 2 warm, 0 starting, 0 claimed | max 4>"
        first = await claim(pool)
        assert first.box.id in {box.id for box in runtime.made[:2]}
        assert (await first.agent.run("echo hello")).output == "hello\n"
        await until(lambda: pool.warm == 2 and not pool.starting)
        assert pool.claimed == 1
        assert await alive(runtime) == 3


async def test_many_claims_at_once_get_a_box_each(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    async with open_pool(size=3, max_size=3, concurrency=4) as pool:
        await until(lambda: pool.warm == 3)
        claimed = await asyncio.gather(*(claim(pool) for _ in range(20)))
        assert len({warm.box.id for warm in claimed}) == 20
        results = await asyncio.gather(*(warm.agent.run("echo $$") for warm in claimed))
        assert all(result.exit_code == 0 for result in results)
        await until(lambda: pool.warm == 3 and not pool.starting)
        assert len(runtime.made) == 23


async def test_starts_are_bounded_however_many_claims_wait(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    runtime.open.clear()
    async with open_pool(size=0, min_size=0) as pool:
        claims = [asyncio.create_task(claim(pool)) for _ in range(5)]
        await until(lambda: pool.starting == 5 and runtime.attempts == 2)
        runtime.open.set()
        assert len({warm.box.id for warm in await asyncio.gather(*claims)}) == 5


async def test_it_grows_with_demand_and_shrinks_without(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    clock = Clock()
    async with open_pool(size=1, clock=clock) as pool:
        await asyncio.gather(*(claim(pool) for _ in range(3)))
        await until(lambda: pool.warm == 3 and not pool.starting)
        clock.now += SETTINGS.grow_window_s + 1
        await claim(pool)
        await until(lambda: pool.warm == 2 and not pool.starting)
        clock.now += SETTINGS.shrink_window_s + 1
        await until(lambda: pool.warm == 1)
        await pool.close(destroy=True)
        assert await alive(runtime) == 4  # Those that were claimed are not the pool's.


async def test_it_keeps_the_least_when_nobody_comes(runtime: Flaky, open_pool: OpenPool) -> None:
    clock = Clock()
    async with open_pool(size=3, clock=clock) as pool:
        await until(lambda: pool.warm == 3)
        clock.now += SETTINGS.idle_after_s + 1
        await until(lambda: pool.warm == 1)


async def test_a_dead_box_is_not_handed_out(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    async with open_pool(size=2, concurrency=1) as pool:
        await until(lambda: pool.warm == 2)
        dead = runtime.made[0]
        await dead.destroy()
        warm = await claim(pool)
        assert warm.box.id == runtime.made[1].id
        assert (await warm.agent.run("echo here")).output == "here\n"


async def test_a_pool_of_dead_boxes_starts_a_new_one(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    async with open_pool() as pool:
        await until(lambda: pool.warm == 2 and not pool.starting)
        dead = [*runtime.made]
        await asyncio.gather(*(box.destroy() for box in dead))
        warm = await claim(pool)
        assert warm.box.id not in {box.id for box in dead}


async def test_boxes_that_die_in_the_pool_are_replaced(runtime: Flaky, open_pool: OpenPool) -> None:
    async with open_pool(check_every_s=0.1) as pool:
        await until(lambda: pool.warm == 2 and not pool.starting)
        await runtime.made[0].destroy()
        await until(lambda: len(runtime.made) == 3 and pool.warm == 2)


async def test_a_broken_link_is_mended(runtime: Flaky, open_pool: OpenPool, claim: Any) -> None:
    clients: list[WardenClient] = []

    def connect(box: Box) -> BoxAgent:
        assert isinstance(box, WardenBox)
        clients.append(box.agent())
        return clients[-1]

    async with open_pool(connect=connect, size=1, max_size=1, check_every_s=0.05) as pool:
        await until(lambda: pool.warm == 1)
        link = clients[0]._link
        assert link is not None
        await link._stream.close()
        await until(lambda: clients[0]._link not in (None, link))
        assert (await claim(pool)).box.id == runtime.made[0].id


async def test_a_failing_engine_is_left_alone_for_longer_and_longer(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    clock = Clock()
    runtime.failing = 5
    async with open_pool(clock=clock) as pool:
        await until(lambda: pool.failure)
        assert pool.failure == "the engine is on fire"
        await until(lambda: not pool.starting)
        assert runtime.attempts == 2  # Its concurrency; together they are one failure.

        async def tried_again(*, not_after_s: float, but_after_s: float) -> None:
            attempts = runtime.attempts
            clock.now += not_after_s
            await asyncio.sleep(3 * SETTINGS.tick_s)
            assert runtime.attempts == attempts
            clock.now += but_after_s - not_after_s
            await until(lambda: runtime.attempts == attempts + 1 and not pool.starting)

        await tried_again(not_after_s=0.2, but_after_s=0.5)
        await tried_again(not_after_s=0.4, but_after_s=1)
        with pytest.raises(RuntimeUnavailable, match="on fire"):
            await claim(pool)
        assert runtime.failing == 0
        clock.now += 30
        await until(lambda: pool.warm == 2)
        assert pool.failure is None


async def test_a_claim_tries_an_engine_that_failed_and_ends_the_wait(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    runtime.failing = 2
    async with open_pool(clock=Clock()) as pool:
        await until(lambda: pool.failure and not pool.starting)
        await claim(pool)
        assert pool.failure is None
        await until(lambda: pool.warm == 2)


async def test_a_full_machine_is_told(runtime: Flaky, open_pool: OpenPool, claim: Any) -> None:
    sessions: list[WarmBox] = []
    async with open_pool(room=lambda: 3 - len(sessions), size=4) as pool:

        async def open_session() -> None:
            sessions.append(await claim(pool))

        await until(lambda: pool.warm == 3)
        await open_session()
        outcomes = await asyncio.gather(*(open_session() for _ in range(4)), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Capacity)]
        assert (len(sessions), len(refused)) == (3, 2)
        assert refused[0].details["retry_after_s"] > 0
        await asyncio.sleep(0.2)
        assert (pool.warm, pool.starting, len(runtime.made)) == (0, 0, 3)
        await sessions.pop().destroy()
        await open_session()


async def test_boxes_that_are_left_are_adopted_by_the_next_pool(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    async with open_pool() as pool:
        await until(lambda: pool.warm == 2 and not pool.starting)
        await pool.close(destroy=False)
        left = await runtime.boxes(SPEC.owner)
        assert {box.id for box in left} == {box.id for box in runtime.made}
        async with open_pool(adopt=left) as second:
            assert second.warm == 2
            claimed = [await claim(second), await claim(second)]
            assert [warm.box.id for warm in claimed] == [box.id for box in left]


async def test_a_box_that_another_process_has_taken_over_is_dropped_and_lives_on(
    runtime: Flaky, open_pool: OpenPool
) -> None:
    async with open_pool(size=1, check_every_s=0.05) as pool:
        await until(lambda: pool.warm == 1)
        async with runtime.made[0].agent(epoch=2) as taken:
            await until(lambda: len(runtime.made) == 2 and pool.warm == 1)
            await until(lambda: not len(pool._ends))
            assert (await taken.run("echo mine")).output == "mine\n"


async def test_a_box_is_destroyed_even_if_the_engine_fails_at_first(
    runtime: Flaky, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pool(size=1) as pool:
        await until(lambda: pool.warm == 1)
        box = runtime.made[0]
        destroy, attempts = box.destroy, iter(range(2))

        async def fail_once() -> None:
            if next(attempts) == 0:
                raise RuntimeUnavailable("the engine is on fire")
            await destroy()

        with monkeypatch.context() as patch:
            patch.setattr(box, "destroy", fail_once)
            await pool.close(destroy=True)
        assert not await box.is_alive()


async def test_what_was_adopted_and_is_dead_is_dropped(runtime: Flaky, open_pool: OpenPool) -> None:
    dead = await runtime.create(SPEC)
    await dead.destroy()
    async with open_pool(adopt=[dead], size=1) as pool:
        await until(lambda: len(runtime.made) == 2 and pool.warm == 1)


async def test_a_claim_cancelled_while_it_checks_its_box_loses_nothing(
    runtime: Flaky, open_pool: OpenPool, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pool(size=1, max_size=1) as pool:
        await until(lambda: pool.warm == 1)
        asked = asyncio.Event()

        async def hang(self: WardenClient, state: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(WardenClient, "set_state", hang)
            claiming = asyncio.create_task(pool.claim({}))
            await asked.wait()
            claiming.cancel()
            await asyncio.wait([claiming])
        await until(lambda: pool.warm == 1 and not pool.starting)
        await until(lambda: len(pool._ends) == 0)
        assert pool.claimed == 0
        assert await alive(runtime) == 1
        await claim(pool)


async def test_a_new_box_that_is_slow_to_take_its_state_is_waited_for(
    runtime: Flaky, open_pool: OpenPool, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_state = WardenClient.set_state

    async def slow(self: WardenClient, state: Mapping[str, Any]) -> BoxState:
        await asyncio.sleep(0.2)
        return await set_state(self, state)

    monkeypatch.setattr(WardenClient, "set_state", slow)
    async with open_pool(size=0, min_size=0, claim_timeout_s=0.05) as pool:
        # A claim may have two boxes made, one ahead: the first that answers is the claim's.
        assert (await claim(pool)).box.id in {box.id for box in runtime.made}


async def test_a_claim_cancelled_while_its_box_starts_leaves_the_box_to_the_pool(
    runtime: Flaky, open_pool: OpenPool, claim: Any
) -> None:
    runtime.open.clear()
    # A look at the pool meanwhile would start a second box, for the next claim.
    async with open_pool(size=1, max_size=1, tick_s=3600) as pool:
        claiming = asyncio.create_task(pool.claim({}))
        await until(lambda: runtime.attempts == 1)
        claiming.cancel()
        await asyncio.wait([claiming])
        runtime.open.set()
        await until(lambda: pool.warm == 1 and not pool.starting)
        assert (await claim(pool)).box.id == runtime.made[0].id


async def test_a_claim_cancelled_the_moment_its_box_is_there(
    runtime: Flaky, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pool(size=0, min_size=0) as pool:
        hand_out = pool._hand_out

        def hand_out_and_cancel(warm: WarmBox) -> None:
            hand_out(warm)
            claiming.cancel()

        monkeypatch.setattr(pool, "_hand_out", hand_out_and_cancel)
        claiming = asyncio.create_task(pool.claim({}))
        await asyncio.wait([claiming])
        assert claiming.cancelled()
        await until(lambda: pool.warm == 1 and not pool.starting and not len(pool._ends))
        assert pool.claimed == 0
        assert await alive(runtime) == 1


async def test_cancelled_claims_at_any_moment_lose_no_box(
    runtime: Flaky, open_pool: OpenPool
) -> None:
    async with open_pool() as pool:
        await until(lambda: pool.warm == 2)
        for pause_s in (0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.1):
            claims = [asyncio.create_task(pool.claim({})) for _ in range(3)]
            await asyncio.sleep(pause_s)
            for task in claims:
                task.cancel()
            for outcome in await asyncio.gather(*claims, return_exceptions=True):
                if isinstance(outcome, WarmBox):
                    await outcome.destroy()
        await until(lambda: not pool.starting and not len(pool._ends))
        assert await alive(runtime) == pool.warm


async def test_closing_ends_starts_and_claims(runtime: Flaky, open_pool: OpenPool) -> None:
    runtime.open.clear()
    async with open_pool() as pool:
        claiming = asyncio.create_task(pool.claim({}))
        await until(lambda: pool.starting == 2)
        await pool.close(destroy=False)
        with pytest.raises(RuntimeUnavailable, match="stop"):
            await claiming
        with pytest.raises(RuntimeUnavailable, match="stop"):
            await pool.claim({})
    assert pool.starting == 0
