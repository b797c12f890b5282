"""Pods of a fleet: who has one is written on it, and of many who claim it one wins."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import Fenced
from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime, PodBox
from sandbox_server.runtime.kubernetes.config import LABEL_OWNER, LABEL_WARM
from sandbox_server.runtime.registry import ClusterOptions
from tests.kubernetes.conftest import SPEC, Kubectl, as_server, runtime_of
from tests.kubernetes.test_rights import grant, role

pytestmark = pytest.mark.rest


async def seen(runtime: KubernetesRuntime, box: PodBox) -> PodBox:
    found = await runtime.shared_box(box.id)
    assert found is not None
    return found


async def test_of_two_servers_that_claim_a_warm_pod_one_wins(kubectl: Kubectl) -> None:
    """Each with connections of its own to the real API server, again and again."""
    async with runtime_of(kubectl, shared=True) as one, runtime_of(kubectl, shared=True) as other:
        box = await one.create(SPEC)
        assert await box.write("warm", warm="of this")
        for turn in range(10):
            first, second = await seen(one, box), await seen(other, box)
            won = await asyncio.gather(first.claim("a", "of a"), second.claim("b", "of b"))
            assert sorted(won) == [False, True]
            winner = first if won[0] else second
            assert winner.holding.claims == turn + 1
            (pod,) = kubectl.pods()
            owner = winner.holding.owner
            assert pod["metadata"]["labels"][LABEL_OWNER] == owner
            assert pod["metadata"]["annotations"]["sandbox/entry"] == f"of {owner}"
            assert LABEL_WARM not in pod["metadata"]["labels"]


async def test_a_warm_pod_is_labelled(kubectl: Kubectl, runtime: KubernetesRuntime) -> None:
    box = await runtime.create(SPEC)
    await box.write("{}", warm="this build")
    assert len(kubectl.json("get", "pods", "-l", LABEL_WARM)["items"]) == 1
    assert await box.claim("a", "")
    assert kubectl.json("get", "pods", "-l", LABEL_WARM)["items"] == []


async def test_an_earlier_owner_is_fenced_whatever_its_epoch(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, shared=True) as runtime:
        box = await runtime.create(SPEC)
        taken = await seen(runtime, box)
        async with box.agent(epoch=1_900_000_000_000) as agent:
            await agent.run("echo kept > a; x=7")
            assert await taken.claim("b", "")
            async with taken.agent(epoch=1) as later:
                assert (await later.run("cat a; echo $x")).stdout == "kept\n7\n"
                with pytest.raises(Fenced):
                    await agent.run("rm a")


async def test_a_pod_that_another_has_claimed_is_not_destroyed(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, shared=True) as runtime:
        box = await runtime.create(SPEC)
        taken = await seen(runtime, box)
        assert await taken.claim("b", "")
        await box.destroy()
        assert not await box.write("of an earlier owner")
        assert await taken.is_alive()
        async with taken.agent() as agent:
            assert (await agent.run("echo hi")).stdout == "hi\n"
        await taken.destroy()
        assert kubectl.pods() == []
        assert not await taken.claim("b", "")
        await taken.destroy()


async def test_a_claim_that_was_not_waited_for_is_no_obstacle(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, shared=True) as runtime:
        box = await runtime.create(SPEC)
        stale = await seen(runtime, box)
        assert await stale.claim(SPEC.owner, "")
        await box.destroy()
        assert kubectl.pods() == []


async def test_the_pods_of_others_are_found(kubectl: Kubectl) -> None:
    long_name = "a name that is no label: " + "x" * 80
    async with runtime_of(kubectl, shared=True) as runtime:
        boxes = [await runtime.create(SPEC) for _ in range(3)]
        for box, owner in zip(boxes, ("a", long_name, "c"), strict=True):
            assert await box.claim(owner, owner)
        found = await runtime.shared_boxes(["a", long_name])
        assert {(box.holding.owner, box.holding.note) for box in found} == {
            ("a", "a"),
            (long_name, long_name),
        }


async def test_a_note_that_does_not_fit_is_left_out(kubectl: Kubectl) -> None:
    async with runtime_of(kubectl, shared=True) as runtime:
        box = await runtime.create(SPEC)
        assert await box.claim("a", "x" * 300_000)
        assert (await seen(runtime, box)).holding.note == ""


async def test_a_server_that_may_not_patch_is_told(kubectl: Kubectl, tmp_path: Path) -> None:
    rules = role()["rules"]
    assert "patch" in rules[0]["verbs"]
    rules[0]["verbs"].remove("patch")
    grant(kubectl, rules)
    access = Access.find(str(as_server(kubectl, tmp_path)), namespace=kubectl.namespace)
    async with KubernetesRuntime(access, ClusterOptions(shared=True)) as runtime:
        box = await runtime.create(SPEC)
        with pytest.raises(errors.RuntimeUnavailable, match="may not patch pods"):
            await box.claim("a", "")
