"""Faults of the cluster and of workers, in any order: no session is lost whose node lives, none is
doubled, no pod is left behind."""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from tests import lanes
from tests.fleet.conftest import redis_server
from tests.fleet.redis_server import RedisServer
from tests.kubernetes import faults
from tests.kubernetes.conftest import Kubectl, as_server
from tests.kubernetes.faults import FAULTS, NO_IMAGE, Fault, Scene
from tests.kubernetes.kept_threads import KeptThread, Seen, patiently, pods_are
from tests.kubernetes.test_adoption import fleet_of
from tests.kubernetes.test_rights import grant, role

__all__ = ["redis_server"]
pytestmark = [pytest.mark.timeout(1800), pytest.mark.cluster_alone]

ROUNDS = lanes.rounds(4, "SANDBOX_TEST_ROUNDS", main=2)
"""Of both ways of streams together."""
SEED = int(os.environ.get("SANDBOX_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
ONLY = os.environ.get("SANDBOX_TEST_FAULTS", "")
"""Names of faults, with commas between them: these, in this order, instead of others."""
THREADS = 4
AWAY_S = 60.0 if ROUNDS >= 20 or ONLY else 5.0
_PATIENCE_S = 10
"""How long coordinators repeat what fails."""
_LOST_S = 15
"""How long a pod stays with a node that does not answer. Such nodes must be back before that."""


def settings(kubectl: Kubectl, folder: Path, streams: str) -> dict[str, str]:
    """Workers with the documented role, and no other."""
    grant(kubectl, role()["rules"])
    tolerations = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": _LOST_S}
        for taint in ("not-ready", "unreachable")
    ]  # fmt: skip
    return {
        "SANDBOX_KUBERNETES_KUBECONFIG": str(as_server(kubectl, folder)),
        "SANDBOX_KUBERNETES_STREAM": streams,
        "SANDBOX_KUBERNETES_TOLERATIONS": json.dumps(tolerations),
        "SANDBOX_KUBERNETES_PLACEMENT": "5",
        "SANDBOX_ENVIRONMENTS": json.dumps({NO_IMAGE: "127.0.0.1:1/nobody/has-it:1"}),
    }


def chosen(chance: random.Random) -> Iterator[Fault]:
    """Each once, in any order, and again."""
    while ONLY:
        yield from (getattr(faults, name) for name in ONLY.split(","))
    while True:
        yield from chance.sample(FAULTS, len(FAULTS))


@pytest.mark.rounds
@pytest.mark.parametrize("streams", ["tcp", "exec"])
async def test_faults_at_random(
    redis_server: RedisServer, tmp_path: Path, kubectl: Kubectl, streams: str
) -> None:
    chance = random.Random(f"{SEED} {streams}")
    made = settings(kubectl, tmp_path, streams)
    seen: dict[str, Seen] = defaultdict(Seen)
    print(f"SANDBOX_TEST_SEED={SEED} streams={streams}")
    async with fleet_of(
        redis_server, tmp_path, kubectl, workers=3, settings=made, patience_s=_PATIENCE_S
    ) as (fleet, _):
        # Callers who do not repeat what fails see all of it.
        client = RemoteBackend(fleet.coordinators[0].url, retry_for_s=0, read_timeout_s=120)
        threads = [KeptThread(client, f"t{number}") for number in range(THREADS)]
        scene = Scene(fleet, client, kubectl, threads, chance, streams, AWAY_S)
        await asyncio.gather(*(thread.begin() for thread in threads))
        turns = chosen(chance)
        for turn in range(1, ROUNDS // 2 + 1):
            fault = next(turns)
            try:
                await one_round(scene, fault, seen[fault.__name__])
            except Exception as exc:
                logs = scene.fleet.logs()
                raise AssertionError(f"{SEED=} {turn=} {fault.__name__}: {exc!r}\n{logs}") from exc
            print(f"{turn:3} {fault.__name__:18} {seen[fault.__name__]}", flush=True)
        await asyncio.gather(*(thread.end() for thread in threads))
        await pods_are(kubectl, [])
        await client.close()


async def one_round(scene: Scene, fault: Fault, seen: Seen) -> None:
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as calling:
        for thread in scene.threads:
            await calling.enter_async_context(thread.called(seen))
        lost = await fault(scene)
        await asyncio.gather(*(each.lost() for each in lost))
        await asyncio.gather(*(each.check() for each in scene.threads))
    await pods_are(scene.kubectl, scene.threads)
    await patiently(scene.new_session)  # The scheduler, too, takes a moment to come back.
    print(f"    {time.monotonic() - began:.1f} s", end="")
