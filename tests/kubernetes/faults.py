"""What can go wrong around a fleet whose boxes are pods. Each fault is over when its function
returns, and that returns the threads whose pod it has taken."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.runtime.kubernetes.config import label_of
from tests.fleet.fleet import LEASE_S, SHORT_GRACE_S, Fleet
from tests.kubernetes.conftest import Kubectl
from tests.kubernetes.kept_threads import RECOVERY_S, KeptThread, patiently, session_of
from tests.kubernetes.test_rights import grant, role
from tests.run import VARIABLE
from tests.server_process import ServerProcess

_SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster.sh"
NODES = ("n1", "n2")
NO_IMAGE = "missing"
"""An environment whose image no node has."""


@dataclass
class Scene:
    """A fleet, its cluster and the threads on them."""

    fleet: Fleet
    client: RemoteBackend
    kubectl: Kubectl
    threads: list[KeptThread]
    chance: random.Random
    streams: str
    away_s: float
    """How long an API server is away, when it is for long."""
    down: list[ServerProcess] = field(default_factory=list)
    """The workers that do not run."""

    @property
    def up(self) -> list[ServerProcess]:
        return [worker for worker in self.fleet.workers if worker not in self.down]

    async def asked(self, *words: str, given: str = "") -> str:
        return await asyncio.to_thread(self.kubectl, *words, given=given)

    async def where(self) -> dict[str, list[KeptThread]]:
        """Threads by the node of their pod."""
        pods = await asyncio.to_thread(self.kubectl.pods)
        nodes = {session_of(pod): pod["spec"].get("nodeName") for pod in pods}
        return {
            node: [each for each in self.threads if nodes.get(each.session_id) == node]
            for node in NODES
        }

    async def pause(self, longest_s: float = 2 * (LEASE_S + SHORT_GRACE_S)) -> None:
        await asyncio.sleep(self.chance.random() * longest_s)

    async def new_session(self, environment: str | None = None) -> None:
        """Make one, use it and end it. Raises SandboxError."""
        thread = f"new-{uuid.uuid4().hex[:8]}"
        made = CreateSessionRequest(thread_id=thread, environment=environment)
        await self.client.create_session(made)
        try:
            request = ExecuteRequest(thread_id=thread, command="echo hi")
            assert (await self.client.execute(request)).output == "hi\n"
        finally:
            await patiently(lambda: self.client.cleanup(Target(thread_id=thread)))


Fault = Callable[[Scene], Awaitable[list[KeptThread]]]


async def cluster(*words: str) -> None:
    """What it starts is not of this run of the tests, and stays."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [str(_SCRIPT), *words]
    await asyncio.to_thread(subprocess.run, command, env=env, check=True, timeout=150)


async def nodes_are_ready(scene: Scene) -> None:
    await scene.asked("wait", "--for=condition=Ready", "node", *NODES, "--timeout=50s")


# --- workers ----------------------------------------------------------------------------------


async def worker_killed(scene: Scene, *, number: signal.Signals = signal.SIGKILL) -> list[Any]:
    """For good, unless it is the last."""
    victim = scene.chance.choice(scene.up)
    await victim.stop(number)
    if len(scene.up) > 1:
        scene.down.append(victim)
    else:
        await victim.start()
    return []


async def worker_terminated(scene: Scene) -> list[Any]:
    return await worker_killed(scene, number=signal.SIGTERM)


async def worker_restarted(scene: Scene) -> list[Any]:
    """Before or after others have its pods."""
    victim = scene.chance.choice(scene.up)
    await victim.stop(scene.chance.choice([signal.SIGKILL, signal.SIGTERM]))
    await scene.pause()
    await victim.start()
    return []


async def worker_frozen(scene: Scene) -> list[Any]:
    victim = scene.chance.choice(scene.up)
    victim.send(signal.SIGSTOP)
    try:
        await scene.pause()
    finally:
        victim.send(signal.SIGCONT)
    return []


async def workers_back(scene: Scene) -> list[Any]:
    """All at once."""
    await asyncio.gather(*(worker.start() for worker in scene.down))
    scene.down.clear()
    return []


async def workers_killed(scene: Scene) -> list[Any]:
    """All but one at once, or all with one that comes back."""
    back = scene.chance.choice(scene.fleet.workers)
    for worker in scene.up:
        if worker is not back or scene.chance.random() < 0.5:
            await worker.stop()
            scene.down.append(worker)
    if back in scene.down:
        await back.start()
        scene.down.remove(back)
    return []


# --- the control plane ------------------------------------------------------------------------


async def api_restarted(scene: Scene) -> list[Any]:
    await cluster("stop", "apiserver")
    await cluster("start", "apiserver")
    return []


async def api_away(scene: Scene) -> list[Any]:
    """Threads with streams of their own go on, and begin commands; others are told."""
    await cluster("stop", "apiserver")
    until = time.monotonic() + scene.away_s
    try:
        while time.monotonic() < until:
            if scene.streams == "tcp":
                await asyncio.gather(*(_goes_on(each) for each in scene.threads))
            await asyncio.sleep(1)
    finally:
        await cluster("start", "apiserver")
    return []


async def _goes_on(thread: KeptThread) -> None:
    """Also with commands that begin now."""
    assert (await thread.run("echo meanwhile")).output == "meanwhile\n"
    assert (await thread.run("sleep 1", background=True)).exit_code is None


async def kubelet_stopped(scene: Scene) -> list[Any]:
    part = f"kubelet-{scene.chance.choice([1, 2])}"
    await cluster("stop", part)
    try:
        await scene.pause(4.0)
    finally:
        await cluster("start", part)
    await nodes_are_ready(scene)
    return []


# --- what takes pods --------------------------------------------------------------------------


async def power_cut(scene: Scene) -> list[KeptThread]:
    """Of a node, which is back before or after the loss is told."""
    node = scene.chance.choice(NODES)
    lost = (await scene.where())[node]
    await cluster("power-cut", node[1:])
    try:
        if scene.chance.random() < 0.6:
            await asyncio.gather(*(thread.lost() for thread in lost))
            lost = []
    finally:
        await cluster("start", f"node-{node[1:]}")
        await nodes_are_ready(scene)
    return lost


async def evicted(scene: Scene) -> list[KeptThread]:
    victim = scene.chance.choice(scene.threads)
    pods = await asyncio.to_thread(scene.kubectl.pods)
    (name,) = [pod["metadata"]["name"] for pod in pods if session_of(pod) == victim.session_id]
    path = f"/api/v1/namespaces/{scene.kubectl.namespace}/pods/{name}/eviction"
    body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
    await scene.asked("create", "--raw", path, "-f", "-", given=json.dumps(body))
    return [victim]


async def drained(scene: Scene) -> list[KeptThread]:
    node = scene.chance.choice(NODES)
    lost = (await scene.where())[node]
    ours = f"sandbox.owner in ({','.join(label_of(each.name) for each in scene.fleet.workers)})"
    await scene.asked("cordon", node)
    try:
        # Only our pods: what others have left on the node may take as long as it likes.
        await scene.asked(
            "drain", node, "--force", "--delete-emptydir-data", "--pod-selector", ours
        )
        await asyncio.gather(*(thread.lost() for thread in lost))
    finally:
        await scene.asked("uncordon", node)
    return []


async def out_of_memory(scene: Scene) -> list[Any]:
    """The command that takes too much ends, and nothing else."""
    victim = scene.chance.choice(scene.threads)
    greedy = "python3 -c 'x = bytearray(1 << 30)'"
    done = await patiently(lambda: victim.run(greedy))
    assert (done.exit_code, done.reason) == (137, "oom"), done
    return []


# --- what new sessions cannot have ------------------------------------------------------------


async def image_missing(scene: Scene) -> list[Any]:
    with pytest.raises(errors.RuntimeUnavailable, match="nobody/has-it"):
        await scene.new_session(NO_IMAGE)
    return []


async def no_room(scene: Scene) -> list[Any]:
    for node in NODES:
        await scene.asked("cordon", node)
    try:
        async with asyncio.timeout(RECOVERY_S):
            with pytest.raises(errors.Capacity, match="nodes are available"):
                await _until_refused(scene)
    finally:
        for node in NODES:
            await scene.asked("uncordon", node)
    return []


async def _until_refused(scene: Scene) -> None:
    """A scheduler places pods for half a minute by what it knew before the API server was away."""
    while True:
        await scene.new_session()


async def quota_exceeded(scene: Scene) -> list[Any]:
    await scene.asked("create", "quota", "few", "--hard=pods=0")
    try:
        with pytest.raises(errors.Capacity, match="exceeded quota"):
            await scene.new_session()
    finally:
        await scene.asked("delete", "quota", "few")
    return []


async def rights_taken(scene: Scene) -> list[Any]:
    """While a session is being made, or before."""
    making = asyncio.create_task(scene.new_session())
    await scene.pause(1.0)
    await asyncio.to_thread(grant, scene.kubectl, [])
    try:
        with pytest.raises(errors.RuntimeUnavailable, match="may not"):
            await scene.new_session()
    finally:
        await asyncio.to_thread(grant, scene.kubectl, role()["rules"])
    with contextlib.suppress(errors.SandboxError):
        await making
    return []


FAULTS: tuple[Fault, ...] = (
    worker_killed, worker_terminated, worker_restarted, worker_frozen, workers_back,
    workers_killed, api_restarted, api_away, kubelet_stopped, power_cut, evicted, drained,
    out_of_memory, image_missing, no_room, quota_exceeded, rights_taken,
)  # fmt: skip
