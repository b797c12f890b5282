"""What an environment says of its pods, as the cluster takes it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.environments.catalogue import open_builds
from sandbox_server.registry.folder import read_registry
from sandbox_server.runtime.kubernetes import KubernetesRuntime
from tests.kubernetes.conftest import SPEC, Kubectl, runtime_of

NIGHTLY = """
name: Nightly
provider: kubernetes
pods:
  priority_class: {priority}
  runtime_class: gvisor
  node_selector: {{pool: p2}}
  tolerations: [{{key: spot, operator: Exists, effect: NoExecute, tolerationSeconds: 5}}]
"""


@pytest.fixture
def priority(kubectl: Kubectl) -> Iterator[str]:
    """A PriorityClass, which no namespace has for itself."""
    name = kubectl.namespace
    kubectl("create", "priorityclass", name, "--value=1000")
    yield name
    kubectl("delete", "priorityclass", name)


async def made_in(folder: Path, priority: str, runtime: KubernetesRuntime) -> str:
    """What the kernel of a box of the environment says."""
    (folder / "environments").mkdir()
    (folder / "environments" / "Nightly.yaml").write_text(NIGHTLY.format(priority=priority))
    environment = read_registry(folder).environments["Nightly"]
    async with open_builds(runtime, folder) as builds:
        box = await runtime.create(await builds.ready(environment, SPEC))
    async with box.agent() as agent:
        return (await agent.run("dmesg")).stdout


async def test_where_its_pods_run(kubectl: Kubectl, priority: str, tmp_path: Path) -> None:
    async with runtime_of(kubectl, tolerations=[{"key": "boxes", "operator": "Exists"}]) as runtime:
        assert "gVisor" in await made_in(tmp_path, priority, runtime)
        await runtime.create(SPEC)
    specs = {pod["spec"].get("priorityClassName", ""): pod["spec"] for pod in kubectl.pods()}
    its, usual = specs[priority], specs[""]
    assert (its["priority"], usual["priority"]) == (1000, 0)
    assert (its["nodeName"], its["runtimeClassName"]) == ("n2", "gvisor")
    assert {"key": "boxes", "operator": "Exists"} in its["tolerations"]
    taint = {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    assert taint in its["tolerations"]
    assert taint not in usual["tolerations"]


async def test_a_class_that_is_not_there(kubectl: Kubectl, tmp_path: Path) -> None:
    async with runtime_of(kubectl) as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match="no PriorityClass with name nobodys"):
            await made_in(tmp_path, "nobodys", runtime)
    assert kubectl.pods() == []
