"""Boxes out of warm pools of kubernetes-sigs/agent-sandbox.

Its controller cannot be had here: this plays its part, on the real API server and with real pods,
in objects of its recorded schema. See docs/kubernetes.md.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import Target
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.kubernetes import (
    Access,
    KubernetesRuntime,
    PodBox,
    agent_sandbox,
    claimed,
)
from sandbox_server.runtime.registry import ClusterOptions
from sandbox_server.runtime.warden.client import WardenClient
from tests.fleet.conftest import redis_server
from tests.fleet.redis_server import RedisServer
from tests.kubernetes.conftest import SPEC, Kubectl, as_server, runtime_of, until
from tests.kubernetes.test_adoption import begin, check, fleet_of, run, session
from tests.kubernetes.test_rights import PAGE, grant, role

pytestmark = pytest.mark.rest

__all__ = ["redis_server"]
SCHEMA = Path(__file__).with_name("agent_sandbox.yaml")
_GROUP = "extensions.agents.x-k8s.io"


@pytest.fixture
def declared(kubectl: Kubectl) -> Kubectl:
    """The cluster with agent-sandbox's kinds of objects, which are not of one namespace."""
    kinds = yaml.safe_load(SCHEMA.read_text())["items"]
    kubectl("apply", "-f", str(SCHEMA))
    for kind in kinds:
        kubectl("wait", "--for=condition=established", f"crd/{kind['metadata']['name']}")
    return kubectl


class Controller:
    """Gives each claim a Sandbox of its pool's template: one that is warm, else a new one."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._stopped = threading.Event()
        self._warm: dict[str, list[str]] = {}
        self._made = 0
        self.paused = False

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            if self.paused:
                continue
            for pool in self._all("sandboxwarmpools"):
                warm = self._warm.setdefault(pool["metadata"]["name"], [])
                while len(warm) < pool["spec"]["replicas"]:
                    warm.append(self._sandbox(pool))
            for claim in self._all("sandboxclaims"):
                if "status" not in claim and not claim["metadata"].get("deletionTimestamp"):
                    self._give(claim)

    def stop(self) -> None:
        self._stopped.set()

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return list(self._kubectl.json("get", f"{kind}.{_GROUP}")["items"])

    def _sandbox(self, pool: dict[str, Any]) -> str:
        """With a pod of another name, as one that was adopted has."""
        self._made += 1
        name = f"{pool['metadata']['name']}-{self._made}"
        ref = pool["spec"]["sandboxTemplateRef"]["name"]
        template = self._kubectl.json("get", f"sandboxtemplates.{_GROUP}", ref)
        pod = template["spec"]["podTemplate"]
        self._kubectl.apply(
            {
                "apiVersion": "agents.x-k8s.io/v1beta1",
                "kind": "Sandbox",
                "metadata": {
                    "name": name,
                    "annotations": {"agents.x-k8s.io/pod-name": f"{name}-pod"},
                },
                "spec": {"podTemplate": pod},
            }
        )
        owner = self._kubectl.json("get", "sandboxes.agents.x-k8s.io", name)["metadata"]["uid"]
        metadata = {
            **pod["metadata"],
            "name": f"{name}-pod",
            "ownerReferences": [_owner("agents.x-k8s.io/v1beta1", "Sandbox", name, owner)],
        }
        self._kubectl.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}
        )
        return name

    def _give(self, claim: dict[str, Any]) -> None:
        pool = next(
            each
            for each in self._all("sandboxwarmpools")
            if each["metadata"]["name"] == claim["spec"]["warmPoolRef"]["name"]
        )
        warm = self._warm.get(pool["metadata"]["name"], [])
        name = warm.pop(0) if warm else self._sandbox(pool)
        self._kubectl("wait", "--for=condition=Ready", f"pod/{name}-pod", "--timeout=50s")
        about = claim["metadata"]
        owner = _owner(f"{_GROUP}/v1beta1", "SandboxClaim", about["name"], about["uid"])
        self._kubectl(
            "patch", "sandboxes.agents.x-k8s.io", name, "--type=merge",
            "-p", json.dumps({"metadata": {"ownerReferences": [owner]}}),
        )  # fmt: skip
        self._tell(claim, {"sandbox": {"name": name}, **_condition("True", "DependenciesReady")})

    def _tell(self, claim: dict[str, Any], status: dict[str, Any]) -> None:
        """kubectl of the cluster's version cannot write a status."""
        path = (
            f"/apis/{_GROUP}/v1beta1/namespaces/{self._kubectl.namespace}/sandboxclaims/"
            f"{claim['metadata']['name']}/status"
        )
        fresh = self._kubectl.json("get", f"sandboxclaims.{_GROUP}", claim["metadata"]["name"])
        self._kubectl(
            "replace", "--raw", path, "-f", "-", given=json.dumps(fresh | {"status": status})
        )


def _owner(version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


def _condition(status: str, reason: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": status, "reason": reason, "message": "ready",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    return {"conditions": [ready]}


@pytest.fixture
def controller(declared: Kubectl) -> Iterator[Controller]:
    made = Controller(declared)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join()


@pytest.fixture
async def runtime(declared: Kubectl) -> AsyncIterator[KubernetesRuntime]:
    async with runtime_of(declared, warm_pool=1, warm_limits=SPEC.limits) as made:
        yield made


def more_rules() -> list[dict[str, Any]]:
    """Those in the documentation."""
    blocks = [text.split("```")[0] for text in PAGE.read_text().split("```yaml")[1:]]
    (found,) = [yaml.safe_load(text) for text in blocks if "sandboxclaims" in text]
    return list(found)


def _claims(kubectl: Kubectl) -> list[dict[str, Any]]:
    return list(kubectl.json("get", f"sandboxclaims.{_GROUP}")["items"])


@pytest.mark.usefixtures("controller")
async def test_a_box_is_claimed(declared: Kubectl, runtime: KubernetesRuntime) -> None:
    """It is a box as any other, of the owner and id that its claim says; it goes with its claim."""
    box = await runtime.create(SPEC)
    assert isinstance(box, PodBox)
    assert box._sandbox_claim
    (claim,) = _claims(declared)
    assert "env" not in claim["spec"]
    async with box.agent(deadman_s=300) as agent:
        done = await agent.run("echo $HOME > f; cat f; id -u; touch /etc/x")
        assert done.stdout == "/home/sandboxuser\n1000\n"
    async with runtime_of(declared, warm_pool=1, warm_limits=SPEC.limits) as second:
        (found,) = await second.boxes(SPEC.owner)
        assert found.id == box.id
        assert await second.boxes("somebody-else") == []
        async with found.agent(epoch=2) as agent:
            assert (await agent.run("cat f")).stdout == "/home/sandboxuser\n"
    await box.destroy()
    assert not await box.is_alive()
    assert _claims(declared) == []
    assert await runtime.boxes(SPEC.owner) == []


@pytest.mark.usefixtures("controller")
async def test_servers_share_a_pool(declared: Kubectl, runtime: KubernetesRuntime) -> None:
    """One template and one pool for boxes that are alike, whoever has them; its size is whoever
    runs the cluster's. Boxes with limits of their own are pods of ours."""
    await runtime.create(SPEC)
    (pool,) = declared.json("get", f"sandboxwarmpools.{_GROUP}")["items"]
    more = '{"spec":{"replicas":2}}'
    name = pool["metadata"]["name"]
    declared("patch", f"sandboxwarmpools.{_GROUP}", name, "--type=merge", "-p", more)
    async with runtime_of(declared, warm_pool=1, warm_limits=SPEC.limits) as second:
        await second.create(replace(SPEC, owner="another"))
        (pool,) = declared.json("get", f"sandboxwarmpools.{_GROUP}")["items"]
        assert pool["spec"]["replicas"] == 2
        own = await second.create(replace(SPEC, limits=Limits(cpus=0.25)))
        assert not own._sandbox_claim
        assert {each.id for each in await runtime.boxes(SPEC.owner)} >= {own.id}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("controller")
async def test_another_worker_takes_a_claimed_pod_over(
    declared: Kubectl, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Its thread goes on, and the claim goes with the session."""
    settings = {"SANDBOX_KUBERNETES_WARM_POOL": "1"}
    async with fleet_of(redis_server, tmp_path, declared, settings=settings) as (fleet, client):
        begun = await begin(client)
        before = await session(client)
        (claim,) = _claims(declared)
        await fleet.named(before.worker).stop()
        await check(client, begun)
        after = await session(client)
        assert after.session_id == before.session_id
        assert after.worker != before.worker, fleet.logs()
        await fleet.named(before.worker).start()
        await fleet.named(before.worker).ready()
        assert [each["metadata"]["uid"] for each in _claims(declared)] == [claim["metadata"]["uid"]]
        assert await run(client, "cat a") == "kept\n"
        await client.cleanup(Target(thread_id="t"))
        assert _claims(declared) == []


async def test_nobody_answers_a_claim(declared: Kubectl) -> None:
    """The controller does not run; the claim is taken back."""
    options = {"warm_pool": 1, "warm_limits": SPEC.limits, "placement_s": 2.0}
    async with runtime_of(declared, **options) as runtime:
        with pytest.raises(errors.Capacity, match="no controller of agent-sandbox answered"):
            await runtime.create(SPEC)
    assert _claims(declared) == []


async def test_a_claim_that_is_cancelled(declared: Kubectl, runtime: KubernetesRuntime) -> None:
    making = asyncio.create_task(runtime.create(SPEC))
    await until(lambda: bool(_claims(declared)) or making.done())
    making.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await making
    await until(lambda: not _claims(declared))


async def test_a_claim_of_a_server_that_was_killed(
    declared: Kubectl, runtime: KubernetesRuntime
) -> None:
    """Before a box came of it: whoever starts in its place takes it back, and no other."""
    declared.apply(agent_sandbox.claim("another", "beef", "some-pool"))
    declared.apply(agent_sandbox.claim(SPEC.owner, "feed", "some-pool"))
    assert await runtime.boxes(SPEC.owner) == []
    assert [each["metadata"]["name"] for each in _claims(declared)] == ["sandbox-beef"]


async def test_a_pod_that_is_replaced_is_a_loss(
    declared: Kubectl, runtime: KubernetesRuntime, controller: Controller
) -> None:
    """agent-sandbox makes a new pod of the same name where one has gone: it has nothing of it."""
    box = await runtime.create(SPEC)
    async with box.agent() as agent:
        await agent.run("echo kept > f")
        controller.paused = True
        name = box._name
        pod = declared.json("get", "pod", name)
        declared("delete", "pod", name, "--force", "--grace-period=0")
        fresh = {key: pod["metadata"][key] for key in ("name", "labels")}
        spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
        declared.apply({"apiVersion": "v1", "kind": "Pod", "metadata": fresh, "spec": spec})
        await until(lambda: declared.json("get", "pod", name)["status"]["phase"] == "Running")
        with pytest.raises(errors.SessionLost):
            await _read_until_it_ends(agent)


async def _read_until_it_ends(agent: WardenClient) -> None:
    """A node takes a moment to end a pod that the API server has forgotten."""
    while True:
        assert (await agent.run("cat f")).stdout == "kept\n"
        await asyncio.sleep(0.1)


@pytest.mark.usefixtures("controller")
async def test_the_documented_rules_are_enough(declared: Kubectl, tmp_path: Path) -> None:
    grant(declared, [*role()["rules"], *more_rules()])
    access = Access.find(str(as_server(declared, tmp_path)), namespace=declared.namespace)
    options = ClusterOptions(warm_pool=1, warm_limits=SPEC.limits)
    async with KubernetesRuntime(access, options) as runtime:
        box = await runtime.create(SPEC)
        assert [each.id for each in await runtime.boxes(SPEC.owner)] == [box.id]
        await box.destroy()


async def test_pools_of_other_versions_are_removed(
    declared: Kubectl, runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day later."""
    pod = agent_sandbox.warm_pod(SPEC, ClusterOptions())
    for made in (agent_sandbox.template(pod), agent_sandbox.warm_pool(pod, 3)):
        made["metadata"]["name"] = "old"
        made["metadata"]["labels"]["sandbox.warden"] = "sandbox-warden-of-yesterday"
        declared.apply(made)
    await runtime._claimed._pool(SPEC)
    assert _names(declared, "sandboxwarmpools") > {"old"}
    monkeypatch.setattr(claimed, "_KEPT_S", -1)
    await runtime._claimed._pool(replace(SPEC, env={"A": "b"}))
    assert "old" not in _names(declared, "sandboxwarmpools") | _names(declared, "sandboxtemplates")


def _names(kubectl: Kubectl, kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in kubectl.json("get", f"{kind}.{_GROUP}")["items"]}


async def test_a_cluster_without_it(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kinds of objects that no cluster has: these here are the whole cluster's."""
    monkeypatch.setattr(agent_sandbox, "GROUP", "extensions.nobodys.example/v1beta1")
    async with runtime_of(kubectl, warm_pool=1, warm_limits=SPEC.limits) as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match="has no sandboxtemplates"):
            await runtime.create(SPEC)
