"""Which way streams go: over TCP where pods can be reached, through the API server otherwise."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.metrics.recorder import Metrics
from sandbox_server.runtime.agent import Fenced
from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime, PodBox
from sandbox_server.runtime.kubernetes.config import PORT, STREAM_POLICY
from sandbox_server.runtime.registry import ClusterOptions
from tests.contract.on_kubernetes import KUBECONFIG
from tests.kubernetes.conftest import SPEC, Kubectl

ATTACK = Path(__file__).with_name("port_attack.py")


class Counted(Metrics):
    def __init__(self) -> None:
        self.ways: list[str] = []

    def pod_stream(self, way: str) -> None:
        self.ways.append(way)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def made(kubectl: Kubectl, counted: Counted, **options: Any) -> KubernetesRuntime:
    access = Access.find(KUBECONFIG, namespace=kubectl.namespace)
    return KubernetesRuntime(access, ClusterOptions(**options), metrics=counted)


def address_of(kubectl: Kubectl, box: PodBox) -> str:
    (pod,) = [
        each for each in kubectl.pods() if each["metadata"]["labels"]["sandbox.box"] == box.id
    ]
    return str(pod["status"]["podIP"])


@contextlib.contextmanager
def unreachable(address: str) -> Iterator[None]:
    """To us, as if a policy refused it."""
    subprocess.run(["ip", "route", "add", "unreachable", f"{address}/32"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", "unreachable", f"{address}/32"], check=True)


async def says(box: PodBox, word: str) -> bool:
    async with box.agent() as agent:
        return (await agent.run(f"echo {word}")).stdout == f"{word}\n"


@pytest.mark.parametrize("runtime_class", [None, "gvisor"])
async def test_over_tcp(kubectl: Kubectl, counted: Counted, runtime_class: str | None) -> None:
    async with made(kubectl, counted, stream="tcp", runtime_class=runtime_class) as runtime:
        box = await runtime.create(SPEC)
        assert await says(box, "one")
        assert await says(box, "two")
        assert counted.ways == ["tcp", "tcp"]
        assert "directly to pods (TCP)" in await runtime.about()
        async with box.agent() as agent:
            much = await agent.run("head -c 5000000 /dev/zero | tr '\\0' x", output_limit=8 << 20)
            assert len(much.stdout) == 5_000_000
    names = [each["metadata"]["name"] for each in kubectl.json("get", "networkpolicies")["items"]]
    assert STREAM_POLICY in names


async def test_as_before(kubectl: Kubectl, counted: Counted) -> None:
    """Without TCP a pod has no port and its namespace no rule for one."""
    async with made(kubectl, counted, stream="exec") as runtime:
        box = await runtime.create(SPEC)
        assert await says(box, "one")
        assert counted.ways == ["exec"]
        assert "exec), as configured" in await runtime.about()
    (pod,) = kubectl.pods()
    assert not any(word.startswith("port=") for word in pod["spec"]["containers"][0]["command"])
    names = [each["metadata"]["name"] for each in kubectl.json("get", "networkpolicies")["items"]]
    assert STREAM_POLICY not in names
    async with made(kubectl, counted, stream="auto") as later:
        (found,) = await later.boxes(SPEC.owner)
        assert isinstance(found, PodBox)
        assert await says(found, "of an earlier server")
    assert counted.ways == ["exec", "exec"]
    async with made(kubectl, counted, stream="tcp") as strict:
        (found,) = await strict.boxes(SPEC.owner)
        assert isinstance(found, PodBox)
        with pytest.raises(errors.RuntimeUnavailable, match="without a port for streams"):
            await says(found, "nothing")


async def test_pods_that_cannot_be_reached(kubectl: Kubectl, counted: Counted) -> None:
    """The exec that was opened first stays; after two of them no other is tried."""
    async with made(kubectl, counted, stream="auto") as runtime:
        first, second, third = await asyncio.gather(*(runtime.create(SPEC) for _ in range(3)))
        with unreachable(address_of(kubectl, first)), unreachable(address_of(kubectl, second)):
            assert await says(first, "a")
            assert await says(second, "b")
            assert await says(third, "c")
            assert counted.ways == ["exec"] * 3
            assert "exec), as pods are not reached" in await runtime.about()
    async with made(kubectl, counted, stream="tcp") as strict:
        boxes = [each for each in await strict.boxes(SPEC.owner) if each.id == first.id]
        assert isinstance(boxes[0], PodBox)
        with (
            unreachable(address_of(kubectl, first)),
            pytest.raises(errors.RuntimeUnavailable, match=f"no stream over TCP.*{PORT}"),
        ):
            await says(boxes[0], "nothing")


async def test_one_pod_that_cannot_be_reached(kubectl: Kubectl, counted: Counted) -> None:
    """It alone has an exec, and TCP again when it can be reached."""
    async with made(kubectl, counted, stream="auto") as runtime:
        first, second = await asyncio.gather(*(runtime.create(SPEC) for _ in range(2)))
        with unreachable(address_of(kubectl, first)):
            assert await says(first, "a")
            assert await says(second, "b")
        assert await says(first, "c")
        assert counted.ways == ["exec", "tcp", "tcp"]


async def test_pods_that_are_gone_say_nothing_of_others(kubectl: Kubectl, counted: Counted) -> None:
    """As those of a node without power: nothing answers at their addresses."""
    async with made(kubectl, counted, stream="auto") as runtime:
        first, second, third = await asyncio.gather(*(runtime.create(SPEC) for _ in range(3)))
        gone = [first, second]
        assert [await says(box, "before") for box in gone] == [True, True]
        with unreachable(address_of(kubectl, first)), unreachable(address_of(kubectl, second)):
            for box in gone:
                name = f"sandbox-{box.id}"
                kubectl("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")
                with pytest.raises(errors.SessionLost):
                    await says(box, "after")
        assert await says(third, "over TCP")
        assert counted.ways == ["tcp"] * 3


async def test_a_second_server_and_a_restarted_one(kubectl: Kubectl, counted: Counted) -> None:
    async with made(kubectl, counted, stream="tcp") as runtime:
        box = await runtime.create(SPEC)
        async with box.agent(epoch=1) as agent:
            assert (await agent.run("echo a")).stdout == "a\n"
            async with made(kubectl, counted, stream="tcp") as other:
                (found,) = await other.boxes(SPEC.owner)
                async with found.agent(epoch=2) as theirs:
                    assert (await theirs.run("echo b")).stdout == "b\n"
                with pytest.raises(Fenced):
                    await agent.run("echo c")


async def attack(agent: Any, how: str, address: str) -> str:
    done = await agent.run(
        f"python3 - {how} {address} {PORT}", stdin=ATTACK.read_bytes(), timeout_s=40
    )
    assert done.exit_code == 0, done.output
    return str(done.stdout)


@pytest.mark.parametrize("how", ["garbage", "slow", "many", "replay"])
async def test_attacks_on_the_port(kubectl: Kubectl, counted: Counted, how: str) -> None:
    """By a process of the box, and by another box. The stream that is open goes on, another can be
    opened, and so can that of the attacker."""
    async with made(kubectl, counted, stream="auto") as runtime:
        spec = replace(SPEC, network="bridge")
        box, neighbour = await asyncio.gather(*(runtime.create(spec) for _ in range(2)))
        address = address_of(kubectl, box)
        async with box.agent() as agent, neighbour.agent() as other, box.agent() as witness:
            await witness.run("echo before")
            for attacker in (agent, other):
                where = "127.0.0.1" if attacker is agent else address
                attacking = asyncio.create_task(attack(attacker, how, where))
                while not attacking.done():
                    assert (await witness.run("echo on")).stdout == "on\n"
                assert "streams: 0" in await attacking
            assert await says(box, "another")
            assert await says(neighbour, "too")
