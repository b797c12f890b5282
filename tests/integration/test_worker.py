"""A worker and boxes that hang: they hold up nobody, and are not taken for lost."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk.protocol.models import DEFAULT_TENANT
from sandbox_server import worker as worker_module
from sandbox_server.pool import PoolSettings
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.bubblewrap.state import Record, StateFolder
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.sessions.table import Life
from sandbox_server.worker import Worker
from tests.contract.conftest import RUNTIMES, state_dir

__all__ = ["state_dir"]

PATIENCE_S = 30.0

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


def make_worker(state_dir: Path, owner: str, *, destroy_on_exit: bool = True) -> Worker:
    registry = SqliteRegistry(state_dir / f"{owner}.sqlite", worker=owner)
    return Worker(
        BubblewrapRuntime(state_dir=state_dir),
        BoxSpec(owner=owner, deadman_s=300),
        registry,
        LoneLease(owner, registry.next_epoch()),
        pool=PoolSettings(size=0, min_size=0, max_size=0),
        environments={"other": "sandbox-secure:latest"},
        idle_timeout_s=600,
        capacity=5,
        destroy_on_exit=destroy_on_exit,
        tick_s=0.1,
    )


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
        short = Life(idle_timeout_s=0.1)
        hanging, _ = await worker.table.open(DEFAULT_TENANT, "hanging")
        frozen = warden_of(state_dir, hanging)
        frozen.stop()
        try:
            hanging.idle_timeout_s = 0.1
            for name in ("a", "b"):
                await worker.table.open(DEFAULT_TENANT, name, short)
            await eventually(lambda: worker.table.sessions() == [hanging])
        finally:
            frozen.resume()
        await eventually(lambda: len(worker.table) == 0)


async def test_a_session_that_hangs_at_adoption_is_not_lost(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_worker(state_dir, "adopting", destroy_on_exit=False) as worker:
        life = Life(environment="other", idle_timeout_s=77)
        session, _ = await worker.table.open(DEFAULT_TENANT, "t", life)
        await session.warden.run("x=kept")
    frozen = warden_of(state_dir, session)
    frozen.stop()
    monkeypatch.setattr(worker_module, "ADOPT_S", 0.1)
    try:
        async with make_worker(state_dir, "adopting") as worker:
            (found,) = worker.table.sessions()
            assert found.record == replace(session.record, epoch=2)
            frozen.resume()
            assert (await found.warden.run("echo $x")).stdout == "kept\n"
            again, _ = await worker.table.open(DEFAULT_TENANT, "t")
            assert (again.environment, again.idle_timeout_s) == ("other", 77)
    finally:
        frozen.resume()
