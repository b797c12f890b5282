"""A fleet has the same Redis, whether it is one, one of several, or a cluster."""

import asyncio
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Phase, Presence, Worker
from sandbox_server.sessions.lease import Load
from tests.fleet.conftest import may_serve
from tests.fleet.redis_kinds import watched

LEASE_S = 1.0
PATIENCE_S = 60.0


def lease_of(store: Store, folder: Path, worker: str) -> RedisLease:
    card = Worker(id=worker, url=f"http://{worker}", capacity=7, phase=Phase.STARTING)
    return RedisLease(store, card, lease_s=LEASE_S, state_dir=folder / worker, stop=lambda: None)


async def no_gap() -> None:
    """Whoever has no sessions has none to vouch for."""


async def test_workers_are_found_and_keep_their_leases(any_store: Store, tmp_path: Path) -> None:
    """Enough of them to be on every node of a cluster."""
    names = [f"worker-{number}" for number in range(8)]
    leases = [lease_of(any_store, tmp_path, name) for name in names]
    for lease in leases:
        await lease.__aenter__()
        await lease.serve(load=lambda: Load(sessions=3), on_gap=no_gap)
    try:
        await asyncio.sleep(2 * LEASE_S)
        for lease in leases:
            lease.check()
        directory = Directory(SessionIndex(any_store, lease_s=LEASE_S, grace_s=1), grace_s=1)
        workers = await directory.workers()
        assert sorted(worker.id for worker in workers) == names
        assert {directory.presence(worker) for worker in workers} == {Presence.HERE}
    finally:
        for lease in leases:
            await lease.__aexit__(None, None, None)


async def test_a_replica_takes_over(tmp_path: Path) -> None:
    async with watched(tmp_path) as (url, master):
        store = Store.open(url)
        try:
            before = await answered(store)
            async with lease_of(store, tmp_path, "w") as lease:
                await lease.serve(load=lambda: Load(sessions=0), on_gap=no_gap)
                await master.stop()
                async with asyncio.timeout(PATIENCE_S):
                    while await answered(store) in (None, before):
                        await asyncio.sleep(0.1)
                    while not may_serve(lease):
                        await asyncio.sleep(0.1)
        finally:
            await store.close()


async def answered(store: Store) -> str | None:
    try:
        return (await store.uptime(outage_s=1, keep_s=60)).run_id
    except RuntimeUnavailable:
        return None
