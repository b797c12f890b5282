"""A worker and boxes that hang: they hold up nobody, and are not taken for lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.models import Target
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import PooledEnvironment
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.bubblewrap.runtime import BubblewrapBox
from sandbox_server.runtime.bubblewrap.state import Record, StateFolder
from sandbox_server.sessions import adoption
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions
from sandbox_server.sessions.registry import Record as SessionRecord
from sandbox_server.sessions.registry import Status
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.worker import Worker
from tests.contract.conftest import RUNTIMES, state_dir
from tests.integration.test_pool import Flaky

__all__ = ["state_dir"]

PATIENCE_S = 30.0

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


async def as_it_is(spec: BoxSpec) -> BoxSpec:
    return spec


@asynccontextmanager
async def make_worker(
    state_dir: Path,
    owner: str,
    *,
    destroy_on_exit: bool = True,
    registry: SqliteRegistry | None = None,
    runtime: Runtime | None = None,
    pool: PoolSettings | None = None,
    lease: LoneLease | None = None,
) -> AsyncIterator[Worker]:
    registry = registry or SqliteRegistry(state_dir / f"{owner}.sqlite", worker=owner)
    made = runtime or BubblewrapRuntime(state_dir=state_dir)
    worker = Worker(
        made,
        BoxSpec(owner=owner, deadman_s=300),
        registry,
        lease or LoneLease(owner, registry.next_epoch()),
        pool=pool or PoolSettings(size=0, min_size=0, max_size=0),
        environments=lambda: {"other": PooledEnvironment(declared="other", ready=as_it_is)},
        idle_timeout_s=600,
        capacity=5,
        destroy_on_exit=destroy_on_exit,
        tick_s=0.1,
    )
    async with made, worker:
        yield worker


def warden_of(state_dir: Path, session: LiveSession) -> Process:
    record = Record.read(StateFolder(state_dir).folder(session.box.id))
    assert record is not None
    (warden,) = record.monitor.children()
    return warden


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_box_that_hangs_does_not_delay_the_end_of_others(state_dir: Path) -> None:
    async with make_worker(state_dir, "hanging") as worker:
        short = SessionOptions(idle_timeout_s=0.1)
        hanging, _ = await worker.table.open(SOLE_TENANT, "hanging")
        # Its box has to be asked: a command may run whose end nobody has seen.
        hanging.may_run_until = time.monotonic() + PATIENCE_S
        frozen = warden_of(state_dir, hanging)
        frozen.stop()
        try:
            hanging.idle_timeout_s = 0.1
            for name in ("a", "b"):
                await worker.table.open(SOLE_TENANT, name, short)
            await eventually(lambda: worker.table.sessions() == [hanging])
        finally:
            frozen.resume()
        await eventually(lambda: len(worker.table) == 0)


async def test_a_session_that_hangs_at_adoption_is_not_lost(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_worker(state_dir, "adopting", destroy_on_exit=False) as worker:
        life = SessionOptions(environment="other", idle_timeout_s=77)
        session, _ = await worker.table.open(SOLE_TENANT, "t", life)
        await session.agent.run("x=kept")
    frozen = warden_of(state_dir, session)
    frozen.stop()
    monkeypatch.setattr(adoption, "ADOPT_S", 0.1)
    try:
        async with make_worker(state_dir, "adopting") as worker:
            (found,) = worker.table.sessions()
            assert found.record == replace(session.record, epoch=2)
            frozen.resume()
            assert (await found.agent.run("echo $x")).stdout == "kept\n"
            again, _ = await worker.table.open(SOLE_TENANT, "t")
            assert (again.environment, again.idle_timeout_s) == ("other", 77)
    finally:
        frozen.resume()


async def test_an_idle_box_that_hangs_is_ended_all_the_same(state_dir: Path) -> None:
    async with make_worker(state_dir, "hangs-for-ever") as worker:
        hanging, _ = await worker.table.open(SOLE_TENANT, "t", SessionOptions(idle_timeout_s=0.1))
        frozen = warden_of(state_dir, hanging)
        frozen.stop()
        try:
            await eventually(lambda: len(worker.table) == 0)
        finally:
            frozen.resume()


async def test_a_command_of_any_length_keeps_a_session_whose_box_was_out_of_reach(
    state_dir: Path,
) -> None:
    async with make_worker(state_dir, "reached-again") as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t")
        command_id = await session.agent.start("sleep 1000", timeout_s=None)
        # As after a restart: the box is asked for so long, and then no longer believed.
        session.may_run_until = time.monotonic() + 0.2
        session.idle_timeout_s = 0.1
        await eventually(lambda: session.watches)
        await eventually(lambda: session.may_run_until + 1 < time.monotonic())
        assert worker.table.sessions() == [session]
        await session.agent.signal(command_id, 9)
        await eventually(lambda: len(worker.table) == 0)


async def test_nothing_that_goes_wrong_with_one_session_ends_the_watch(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_worker(state_dir, "watching") as worker:
        broken, _ = await worker.table.open(
            SOLE_TENANT, "broken", SessionOptions(idle_timeout_s=0.1)
        )
        looked = asyncio.Event()

        async def lose(session: LiveSession) -> None:
            looked.set()
            raise ValueError("a bug, or a full disk")

        async def expire(session: LiveSession) -> None:
            if session is not broken:
                await real_expire(session)
            elif not looked.is_set():
                raise SessionLost("gone")

        real_expire = worker.table.expire
        monkeypatch.setattr(worker.table, "lose", lose)
        monkeypatch.setattr(worker.table, "expire", expire)
        await asyncio.wait_for(looked.wait(), PATIENCE_S)
        await worker.table.open(SOLE_TENANT, "other", SessionOptions(idle_timeout_s=0.1))
        await eventually(lambda: worker.table.sessions() == [broken])


class Hiccuping(SqliteRegistry):
    """One that does not answer when it is first told of a session."""

    silent = True

    async def restore(self, record: SessionRecord) -> bool:
        if record.thread_id == "unlucky" and self.silent:
            raise RuntimeUnavailable("the registry does not answer")
        return await super().restore(record)

    async def restore_all(self, records: Sequence[SessionRecord]) -> list[bool]:
        if self.silent and any(record.thread_id == "unlucky" for record in records):
            raise RuntimeUnavailable("the registry does not answer")
        return await super().restore_all(records)


async def test_a_registry_that_hiccups_for_one_box_costs_no_other(state_dir: Path) -> None:
    async with make_worker(state_dir, "hiccup", destroy_on_exit=False) as worker:
        for name in ("lucky", "unlucky"):
            session, _ = await worker.table.open(SOLE_TENANT, name)
            await session.agent.run("x=kept")
    registry = Hiccuping(state_dir / "hiccup.sqlite", worker="hiccup")
    async with make_worker(state_dir, "hiccup", registry=registry) as worker:
        assert len(worker.table) == 2
        lucky, state = await worker.table.open(SOLE_TENANT, "lucky")
        assert (state, (await lucky.agent.run("echo $x")).stdout) == ("live", "kept\n")
        for served in (
            worker.table.open(SOLE_TENANT, "unlucky"),
            worker.table.find(SOLE_TENANT, Target(thread_id="unlucky")),
        ):
            with pytest.raises(RuntimeUnavailable):
                await served
        registry.silent = False
        unlucky, state = await worker.table.open(SOLE_TENANT, "unlucky")
        assert (state, (await unlucky.agent.run("echo $x")).stdout) == ("live", "kept\n")


async def test_an_end_that_could_not_be_told_is_told_later(state_dir: Path) -> None:
    registry = Deaf(state_dir / "deaf.sqlite", worker="deaf")
    async with make_worker(state_dir, "deaf", registry=registry) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t")
        await worker.table.cleanup(session)
        assert len(await registry.live()) == 1
        registry.deaf = False
        async with asyncio.timeout(PATIENCE_S):
            while await registry.live():
                await asyncio.sleep(0.02)
        newest = await registry.newest(SOLE_TENANT, "t")
        assert newest is not None
        assert newest.status == Status.CLEANED


class Deaf(SqliteRegistry):
    deaf = True

    async def end(self, record: SessionRecord, status: Status) -> None:
        if self.deaf:
            raise RuntimeUnavailable("the registry does not answer")
        await super().end(record, status)


async def test_a_box_of_an_environment_comes_out_of_the_pool_too(state_dir: Path) -> None:
    """As many start at a time as may, and one that hangs is given up."""
    runtime = Flaky(BubblewrapRuntime(state_dir=state_dir))
    runtime.open.clear()
    pool = PoolSettings(size=0, min_size=0, max_size=0, concurrency=2, start_timeout_s=0.3)
    async with make_worker(state_dir, "environments", runtime=runtime, pool=pool) as worker:
        life = SessionOptions(environment="other")
        opening = [
            asyncio.create_task(worker.table.open(SOLE_TENANT, f"t{number}", life))
            for number in range(4)
        ]
        await eventually(lambda: runtime.attempts == 2)
        for error in await asyncio.gather(*opening, return_exceptions=True):
            assert isinstance(error, RuntimeUnavailable), error
        assert runtime.attempts == 4
        assert "environment other" in worker.health().checks
        assert worker.health().checks["runtime"] == "ok"


async def test_a_session_is_not_ended_by_a_worker_that_may_not_serve(state_dir: Path) -> None:
    """One that was frozen finds its sessions idle, and another process may have them."""
    lease = Lapsed("lapsed", 1)
    async with make_worker(state_dir, "lapsed", lease=lease) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t", SessionOptions(idle_timeout_s=0.1))
        lease.lapsed = True
        await asyncio.sleep(0.4)
        assert session.ended is None
        lease.lapsed = False
        await eventually(lambda: len(worker.table) == 0)


class Lapsed(LoneLease):
    lapsed = False

    def check(self) -> None:
        if self.lapsed:
            raise RuntimeUnavailable("its time is over")


async def test_a_box_that_another_process_has_is_not_destroyed(state_dir: Path) -> None:
    async with make_worker(state_dir, "fenced", destroy_on_exit=True) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t")
        async with session.box.agent(epoch=1000):
            pass
    assert await session.box.is_alive()
    await session.box.destroy()


async def test_a_box_that_cannot_be_destroyed_now_is_later(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may be away just then."""
    tried: list[str] = []
    destroy = BubblewrapBox.destroy

    async def refused(box: BubblewrapBox) -> None:
        tried.append(box.id)
        if len(tried) <= 2:
            raise RuntimeUnavailable("not now")
        await destroy(box)

    monkeypatch.setattr(BubblewrapBox, "destroy", refused)
    runtime = BubblewrapRuntime(state_dir=state_dir)
    async with make_worker(state_dir, "late", runtime=runtime) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t")
        await worker.table.cleanup(session)
        await eventually(lambda: len(tried) == 3)
    assert not await runtime.boxes("late")


async def test_closing_waits_for_a_box_that_is_being_ended(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, may_end, began = [], asyncio.Event(), asyncio.Event()
    destroy = BubblewrapBox.destroy

    async def slowly(box: BubblewrapBox) -> None:
        began.set()
        await may_end.wait()
        await destroy(box)
        ended.append(box.id)

    monkeypatch.setattr(BubblewrapBox, "destroy", slowly)
    async with make_worker(state_dir, "closing") as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t", SessionOptions(idle_timeout_s=0.1))
        await began.wait()
        asyncio.get_running_loop().call_later(0.5, may_end.set)
    assert ended == [session.box.id]
