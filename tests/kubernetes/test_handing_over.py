"""Workers whose name changes with every start: one that stops leaves its pods to the others."""

import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_server.fleet.workers import Presence
from tests.contract.on_kubernetes import KUBECONFIG
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import Fleet, remote
from tests.fleet.redis_server import RedisServer
from tests.kubernetes.conftest import Kubectl
from tests.kubernetes.test_adoption import begin, box_owners, check, session
from tests.server_process import ServerProcess

__all__ = ["redis_server"]
pytestmark = pytest.mark.timeout(600)

GRACE_S = 3600.0
"""Nobody who waits for it gets an answer in time."""


@contextlib.asynccontextmanager
async def fleet_of(
    redis: RedisServer, folder: Path, kubectl: Kubectl, *, workers: int
) -> AsyncIterator[tuple[Fleet, RemoteBackend]]:
    fleet = Fleet("kubernetes", folder, redis, grace_s=GRACE_S)
    try:
        made = [worker_of(fleet, folder, kubectl) for _ in range(workers)]
        await fleet.run(made, [fleet.process("coordinator")])
        async with remote(fleet.coordinators[0]) as client:
            yield fleet, client
    finally:
        await fleet.close()


def worker_of(fleet: Fleet, folder: Path, kubectl: Kubectl) -> ServerProcess:
    settings = {
        "SANDBOX_KUBERNETES_KUBECONFIG": KUBECONFIG,
        "SANDBOX_KUBERNETES_NAMESPACE": kubectl.namespace,
        "SANDBOX_POOL_SIZE": "1",
        "SANDBOX_MIN_POOL_SIZE": "0",
        "SANDBOX_MAX_POOL_SIZE": "1",
        "SANDBOX_HAND_OVER": "true",
    }
    return fleet.process("worker", **settings)


async def test_threads_go_on_at_once(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    async with fleet_of(redis_server, tmp_path, kubectl, workers=2) as (fleet, client):
        begun = await begin(client)
        before = await session(client)
        await fleet.named(before.worker).stop(signal.SIGTERM)
        await check(client, begun)
        after = await session(client)
        assert (after.session_id, after.generation) == (before.session_id, before.generation)
        assert after.worker != before.worker, fleet.logs()
        assert before.worker not in box_owners(kubectl).values()


async def test_all_are_replaced(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl
) -> None:
    """As a Deployment does it: a new one is ready before an old one goes."""
    async with fleet_of(redis_server, tmp_path, kubectl, workers=1) as (fleet, client):
        begun = await begin(client)
        (old,) = fleet.workers
        new = worker_of(fleet, tmp_path, kubectl)
        await new.start()
        await new.ready()
        await old.stop(signal.SIGTERM)
        assert await fleet.presence(old) == Presence.GONE
        await check(client, begun)
        assert (await session(client)).worker == new.name
