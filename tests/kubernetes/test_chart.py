"""The chart of deploy/kubernetes on a real cluster: what its API says of every object, and a
release that is used, upgraded and evicted."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_server.runtime.kubernetes import KubernetesRuntime
from tests.contract.on_kubernetes import WHOLE
from tests.deploy.chart import SETS, rendered
from tests.deploy.stack import run
from tests.kubernetes.conftest import SPEC, Kubectl
from tests.kubernetes.release import Release, Service, eventually, evict, installed
from tests.run import run_owner

pytestmark = [pytest.mark.timeout(1800), pytest.mark.rest]  # The first time, images are built.
needs_engine = pytest.mark.skipif(
    not os.environ.get("DOCKER_HOST"), reason="no engine that builds the server's image"
)


@pytest.mark.parametrize("name", SETS)
def test_the_cluster_accepts_every_object(kubectl: Kubectl, name: str) -> None:
    """A dry run goes through validation by schema, defaults and admission; nothing is made. The
    namespace of boxes is taken for the test's own, which is there."""
    boxes = {"boxes": {"namespace": kubectl.namespace, "createNamespace": False}}
    objects = rendered(
        SETS[name],
        boxes,
        namespace=kubectl.namespace,
        api_versions=kubectl("api-versions").split(),
    )
    body = {"apiVersion": "v1", "kind": "List", "items": objects}
    told = kubectl(
        "apply", "--dry-run=server", "--validate=true", "-f", "-", given=json.dumps(body)
    )
    assert told.count("(server dry run)") == len(objects)


def test_a_slip_is_found(kubectl: Kubectl) -> None:
    objects = rendered(namespace=kubectl.namespace)
    service = next(each for each in objects if each["kind"] == "Service")
    service["spec"]["portz"] = []
    with pytest.raises(AssertionError, match="portz"):
        kubectl(
            "apply", "--dry-run=server", "--validate=true", "-f", "-", given=json.dumps(service)
        )


async def test_a_drain_waits_for_boxes_if_asked_to(
    kubectl: Kubectl, runtime: KubernetesRuntime
) -> None:
    box = await runtime.create(SPEC)
    (pod,) = kubectl.pods()
    values = {
        "boxes": {"namespace": kubectl.namespace, "createNamespace": False, "blockEviction": True}
    }
    objects = rendered(values, api_versions=kubectl("api-versions").split())
    (budget,) = (each for each in objects if each["metadata"]["name"] == "boxes")
    kubectl.apply(budget)
    await eventually(lambda: "observedGeneration" in kubectl.json("get", "pdb", "boxes")["status"])
    with pytest.raises(AssertionError, match="disruption budget"):
        evict(kubectl, pod)
    assert await box.is_alive()
    kubectl("delete", "pdb", "boxes")
    evict(kubectl, pod)
    await eventually(lambda: not kubectl.pods())


@needs_engine
@pytest.mark.parametrize("kind", ["Deployment", *(["StatefulSet"] if WHOLE else [])])
async def test_a_release_serves_and_is_upgraded_without_a_failed_call(
    kind: str, record_property: Callable[[str, object], None]
) -> None:
    async with (
        installed(run_owner(f"chart-{kind.lower()}"), workers={"kind": kind}) as release,
        Service(release.kubectl.namespace) as service,
        RemoteBackend(
            service.url, api_key=release.api_key(), read_timeout_s=300, retry_for_s=300
        ) as sandboxes,
    ):
        await check_the_self_test(release, service)
        try:
            async with calling(sandboxes, threads=3) as (counts, slowest_s):
                await eventually(lambda: min(counts) > 0)
                await check_an_upgrade(release)
                await check_an_eviction(release)
            record_property(f"slowest_calls_s_{kind}", [round(each, 1) for each in slowest_s])
        except BaseExceptionGroup as exc:
            raise AssertionError(release.logs()) from exc
        await check_sessions_are_everywhere(release, sandboxes)


async def check_the_self_test(release: Release, service: Service) -> None:
    told = await asyncio.to_thread(
        run, sys.executable, "-m", "sandbox_sdk", "--test",
        SANDBOX_URL=service.url, SANDBOX_API_KEY=release.api_key(),
    )  # fmt: skip
    assert "everything works" in told


@contextlib.asynccontextmanager
async def calling(
    sandboxes: RemoteBackend, *, threads: int
) -> AsyncIterator[tuple[list[int], list[float]]]:
    """Callers that count in their shells, all the time. Fails if a call fails, or if a shell was
    lost or a command was run twice. Yields how many calls each has made, and how long the slowest
    took."""
    counts, slowest_s = [0] * threads, [0.0] * threads
    over = asyncio.Event()

    async def call(number: int) -> None:
        request = ExecuteRequest(thread_id=f"t{number}", command="n=$((n+1)); echo $n")
        while not over.is_set():
            began = time.monotonic()
            result = await sandboxes.execute(request)
            slowest_s[number] = max(slowest_s[number], time.monotonic() - began)
            counts[number] += 1
            assert (result.output, result.generation) == (f"{counts[number]}\n", 1)
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as callers:
        for number in range(threads):
            callers.create_task(call(number))
        yield counts, slowest_s
        over.set()


async def check_an_upgrade(release: Release) -> None:
    """All pods are others afterwards."""
    before = uids(release)
    await asyncio.to_thread(release.apply, podAnnotations={"upgraded": "1"})
    await release.until_rolled_out()
    await eventually(lambda: not before & uids(release))


def uids(release: Release) -> set[str]:
    return {
        pod["metadata"]["uid"] for part in ("coordinator", "worker") for pod in release.pods(part)
    }


async def check_an_eviction(release: Release) -> None:
    """As in a drain of a node: one at a time, since a budget forbids more."""
    first, second = release.ready("worker")
    evict(release.kubectl, first)
    with pytest.raises(AssertionError, match="disruption budget"):
        evict(release.kubectl, second)
    await eventually(lambda: first["metadata"]["uid"] not in uids(release))
    await release.until_rolled_out()


async def check_sessions_are_everywhere(release: Release, sandboxes: RemoteBackend) -> None:
    """Boxes are pods of the other namespace, and end with their sessions."""
    for number in range(3):
        assert await sandboxes.session(Target(thread_id=f"t{number}"))
        await sandboxes.cleanup(Target(thread_id=f"t{number}"))
    assert all(pod["metadata"]["labels"]["sandbox"] == "1" for pod in release.boxes.pods())
