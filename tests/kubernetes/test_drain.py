"""A drain of a node with boxes: sessions that persist move, others have the grace period."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from tests.contract.on_kubernetes import KUBECONFIG, PODS
from tests.fleet.fleet import remote
from tests.kubernetes.conftest import Kubectl, until
from tests.server_process import ServerProcess, running

pytestmark = [pytest.mark.timeout(300), pytest.mark.rest]

NODE = "n1"  # Other tests want pods on the second one.
_TRIES = 6
_DRAIN_S = 150.0


@contextlib.asynccontextmanager
async def serving(
    kubectl: Kubectl, folder: Path, runtime_class: str
) -> AsyncIterator[tuple[ServerProcess, RemoteBackend]]:
    settings = {
        "SANDBOX_KUBERNETES_KUBECONFIG": KUBECONFIG,
        "SANDBOX_KUBERNETES_NAMESPACE": kubectl.namespace,
        "SANDBOX_KUBERNETES_RUNTIME_CLASS": runtime_class,
        "SANDBOX_POOL_SIZE": "0",
        "SANDBOX_MAX_POOL_SIZE": "0",
        "SANDBOX_CHECKPOINTS": "folder",
    }
    async with running("kubernetes", folder, **settings) as server:
        await server.ready()
        async with remote(server) as client:
            yield server, client


async def on_the_node(client: RemoteBackend, kubectl: Kubectl, name: str, *, persist: bool) -> str:
    """A thread whose box is on the node that is to be drained."""
    for number in range(_TRIES):
        before = {pod["metadata"]["name"] for pod in kubectl.pods()}
        thread = f"{name}{number}"
        await client.create_session(CreateSessionRequest(thread_id=thread, persist=persist))
        (pod,) = (pod for pod in kubectl.pods() if pod["metadata"]["name"] not in before)
        if pod["spec"]["nodeName"] == NODE:
            return thread
    raise AssertionError(f"no box on {NODE}")


async def run(client: RemoteBackend, thread: str, command: str) -> str:
    result = await client.execute(ExecuteRequest(thread_id=thread, command=command))
    return result.output


@contextlib.asynccontextmanager
async def draining(kubectl: Kubectl) -> AsyncIterator[None]:
    """Of this namespace's boxes alone."""
    boxes = ("--pod-selector", f"sandbox.test={kubectl.namespace}")
    kubectl("label", "pods", "--all", "--overwrite", f"sandbox.test={kubectl.namespace}")
    words = ("drain", NODE, "--force", "--ignore-daemonsets", "--delete-emptydir-data", *boxes)
    drain = await asyncio.create_subprocess_exec("kubectl", "--kubeconfig", KUBECONFIG, *words)
    try:
        await until(lambda: any(map(is_ending, kubectl.pods())))
        yield
        async with asyncio.timeout(_DRAIN_S):
            assert await drain.wait() == 0
    finally:
        if drain.returncode is None:
            drain.kill()
            await drain.wait()


@pytest.fixture
def drained(kubectl: Kubectl) -> Iterator[Kubectl]:
    """The node takes pods again in the end."""
    yield kubectl
    kubectl("uncordon", NODE)


def is_ending(pod: dict[str, dict[str, str]]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


@pytest.mark.cluster_alone
@pytest.mark.parametrize("pods", PODS or ["kubernetes"])
async def test_a_drain(drained: Kubectl, tmp_path: Path, pods: str) -> None:
    kubectl = drained
    runtime_class = pods.removeprefix("kubernetes").lstrip("_")
    async with serving(kubectl, tmp_path, runtime_class) as (server, client):
        moves = await on_the_node(client, kubectl, "moves", persist=True)
        stays = await on_the_node(client, kubectl, "stays", persist=False)
        for thread in (moves, stays):
            await run(client, thread, "echo kept > a")
        before = {
            thread: await client.session(Target(thread_id=thread)) for thread in (moves, stays)
        }
        waiting = "until [ -e go ]; do sleep 0.1; done; echo went"
        begun = await client.execute(
            ExecuteRequest(thread_id=stays, command=waiting, background=True)
        )
        async with draining(kubectl):
            assert await run(client, stays, "cat a; touch go") == "kept\n"
            async with asyncio.timeout(20):
                while not (
                    ended := await client.result(Target(thread_id=stays), begun.command_id)
                ).output:
                    await asyncio.sleep(0.1)
        assert ended.output == "went\n", server.log()

        after = await client.execute(ExecuteRequest(thread_id=moves, command="cat a"))
        assert after.output == "kept\n", server.log()
        assert after.generation == before[moves].generation + 1
        assert after.resumed is not None
        assert after.resumed.complete
        assert {pod["spec"]["nodeName"] for pod in kubectl.pods()} == {"n2"}

        with pytest.raises(errors.SessionLost):
            await client.session(Target(session_id=before[stays].session_id))
        assert await run(client, stays, "ls") == ""
