"""Pods as the cluster has them: what is in them, who may do what, what fails and what is told."""

import asyncio
import json
from dataclasses import replace

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.base import BoxUser, Limits
from sandbox_server.runtime.kubernetes import KubernetesRuntime
from sandbox_server.runtime.kubernetes.config import DENY_ALL, STREAM_POLICY, warden_map_name
from tests.kubernetes.conftest import SPEC, Kubectl, runtime_of, until


async def test_a_pod_is_hardened(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    """As the API server has it, defaults of others included."""
    box = await runtime.create(SPEC)
    (pod,) = kubectl.pods()
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    assert not any("serviceaccount" in each["mountPath"] for each in container["volumeMounts"])
    assert spec["restartPolicy"] == "Never"
    assert "hostNetwork" not in spec
    assert spec["securityContext"]["runAsUser"] == 1000
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    async with box.agent() as agent:
        done = await agent.run(
            "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; touch /etc/x; env | grep -c"
            " KUBERNETES; ls /var/run/secrets; id -u; git init -q . && git status --short"
        )
    assert "CapEff:\t0000000000000000" in done.stdout
    assert "NoNewPrivs:\t1" in done.stdout
    assert "Seccomp:\t2" in done.stdout
    assert "Read-only file system" in done.stderr
    assert done.stdout.endswith("0\n1000\n")
    assert "dubious" not in done.stderr


async def test_what_a_namespace_gets(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    """The warden and a policy, made once, which a second server finds; nothing else."""
    await runtime.create(SPEC)
    maps = [each["metadata"] for each in kubectl.json("get", "configmaps")["items"]]
    ours = [about for about in maps if about.get("labels", {}).get("sandbox")]
    assert [about["name"] for about in ours] == [warden_map_name()]
    policies = kubectl.json("get", "networkpolicies")["items"]
    assert {each["metadata"]["name"] for each in policies} == {DENY_ALL, STREAM_POLICY}
    async with runtime_of(kubectl) as second:
        assert len(await second.boxes(SPEC.owner)) == 1
        await second.create(SPEC)
    assert len(await runtime.boxes(SPEC.owner)) == 2
    assert await runtime.boxes("somebody-else") == []


@pytest.mark.timeout(180)  # The kubelet measures volumes once a minute.
async def test_an_empty_box_is_within_its_limits(
    kubectl: Kubectl, runtime: KubernetesRuntime
) -> None:
    """As the kubelet measures them: it evicts a pod that is over."""
    box = await runtime.create(SPEC)
    (pod,) = kubectl.pods()
    limits = {
        each["name"]: quantity(each["emptyDir"]["sizeLimit"])
        for each in pod["spec"]["volumes"]
        if "emptyDir" in each
    }
    used: dict[str, int] = {}

    def measured() -> bool:
        summary = json.loads(
            kubectl("get", "--raw", f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/stats/summary")
        )
        for each in summary["pods"]:
            if each["podRef"]["name"] == pod["metadata"]["name"]:
                used.update({v["name"]: v.get("usedBytes", 0) for v in each.get("volume", ())})
        return limits.keys() <= used.keys()

    async with asyncio.timeout(150):
        while not await asyncio.to_thread(measured):
            await asyncio.sleep(1)
    assert {name: used[name] for name in limits if used[name] > limits[name]} == {}
    assert await box.is_alive()


def quantity(text: str) -> int:
    """Bytes of a size as Kubernetes writes it."""
    units = {"k": 1000, "Ki": 1 << 10, "Mi": 1 << 20}
    number = text.rstrip("kKMi")
    return int(number) * units.get(text[len(number) :], 1)


async def test_names_of_owners_that_are_no_labels(runtime: KubernetesRuntime) -> None:
    owner = f"{SPEC.owner}/ä b {'x' * 80}"
    box = await runtime.create(replace(SPEC, owner=owner))
    assert [each.id for each in await runtime.boxes(owner)] == [box.id]
    await box.destroy()
    assert await runtime.boxes(owner) == []


async def test_another_user(runtime: KubernetesRuntime) -> None:
    user = BoxUser(name="user", home="/home/user")
    box = await runtime.create(replace(SPEC, user=user))
    async with box.agent() as agent:
        done = await agent.run("echo $HOME $USER; touch ~/a; ls /home/sandboxuser")
    assert done.stdout == "/home/user user\na\n"


async def test_an_image_that_is_not_there(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    with pytest.raises(errors.RuntimeUnavailable, match=r"image nobody/has-it.*(Err|Back)"):
        await runtime.create(replace(SPEC, image="nobody/has-it:1"))
    await until(lambda: not kubectl.pods())


async def test_an_image_without_python(runtime: KubernetesRuntime) -> None:
    with pytest.raises(errors.SandboxError, match=r"image k8s.local/busybox:1 (has no|does not)"):
        await runtime.create(replace(SPEC, image="k8s.local/busybox:1"))


async def test_no_room(kubectl: Kubectl) -> None:
    """With the scheduler's own reason; nothing waits on."""
    async with runtime_of(kubectl, placement_s=3.0) as runtime:
        much = replace(SPEC, limits=Limits(cpus=500))
        with pytest.raises(
            errors.Capacity, match=r"0/\d+ nodes are available: .* Insufficient cpu"
        ):
            await runtime.create(much)
    assert kubectl.pods() == []


async def test_no_such_node(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, placement_s=3.0, node_selector={"pool": "none"}) as runtime:
        with pytest.raises(errors.Capacity, match="nodes are available"):
            await runtime.create(SPEC)


async def test_a_node_that_is_asked_for(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, node_selector={"pool": "p2"}) as runtime:
        await runtime.create(SPEC)
    assert [pod["spec"]["nodeName"] for pod in kubectl.pods()] == ["n2"]


async def test_a_quota(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    kubectl("create", "quota", "few", "--hard=pods=0")
    with pytest.raises(errors.Capacity, match=r"quota of namespace .* used up: .*exceeded quota"):
        await runtime.create(SPEC)


async def test_a_runtime_class_that_is_not_there(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, runtime_class="nobodys") as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match="nobodys"):
            await runtime.create(SPEC)


async def test_a_pod_that_somebody_deletes(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, eviction_s=1.0) as runtime:
        box = await runtime.create(SPEC)
        async with box.agent() as agent:
            await agent.connect()
            kubectl("delete", "pod", "--all", "--wait=true")
            with pytest.raises(errors.SessionLost):
                await agent.run("true")
        assert not await box.is_alive()


async def test_why_a_pod_has_ended(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    """Its owner has been silent for too long: the box ends itself, and the pod says that it did."""
    box = await runtime.create(replace(SPEC, deadman_s=1))
    await until(lambda: kubectl.pods()[0]["status"]["phase"] != "Running")
    with pytest.raises(errors.SessionLost, match=f"box {box.id} is gone: "):
        await box.open_stream()
    assert await runtime.boxes(SPEC.owner) == []
    await until(lambda: not kubectl.pods())


async def test_a_create_that_is_cancelled(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    making = asyncio.create_task(runtime.create(SPEC))
    await until(lambda: bool(kubectl.pods()) or making.done())
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await until(lambda: not kubectl.pods())


async def test_many_at_once_share_a_watch(runtime: KubernetesRuntime) -> None:
    boxes = await asyncio.gather(*(runtime.create(SPEC) for _ in range(6)))
    assert len({box.id for box in boxes}) == 6
    assert len(runtime._watches) == 1


async def test_gvisor(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, runtime_class="gvisor") as runtime:
        box = await runtime.create(SPEC)
        async with box.agent() as agent:
            assert "gVisor" in (await agent.run("dmesg")).stdout
        assert "one process" in (await runtime.enforcement()).memory
        await box.destroy()
        assert not await box.is_alive()


async def test_nothing_goes_on_when_a_box_is_destroyed(runtime: KubernetesRuntime) -> None:
    """The API server forgets a pod before its node has ended it: its warden ends it first."""
    box = await runtime.create(SPEC)
    stream = await box.open_stream()
    await box.destroy()
    async with asyncio.timeout(5):
        assert await stream.read() == b""
    await stream.close()
    await box.destroy()


async def test_a_destroy_that_is_cancelled(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    box = await runtime.create(SPEC)
    async with box.agent() as agent:
        await agent.connect()
    for _ in range(20):
        destroying = asyncio.create_task(box.destroy())
        await asyncio.sleep(0.01)
        destroying.cancel()
        await asyncio.wait([destroying])
    await until(lambda: not kubectl.pods())
