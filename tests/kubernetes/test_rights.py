"""A server with the role of docs/kubernetes.md, and with less."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_sdk.protocol import errors
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime
from tests.contract.conftest import state_dir
from tests.integration.test_worker import make_worker
from tests.kubernetes.conftest import SPEC, Kubectl, as_server, until

__all__ = ["state_dir"]

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def role() -> dict[str, Any]:
    """The one in the documentation."""
    blocks = PAGE.read_text().split("```yaml")[1:]
    documents = [each for text in blocks for each in yaml.safe_load_all(text.split("```")[0])]
    (found,) = [each for each in documents if isinstance(each, dict) and each.get("kind") == "Role"]
    return dict(found)


def grant(kubectl: Kubectl, rules: list[dict[str, Any]]) -> None:
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "server"}}
    kubectl.apply({**about, "kind": "Role", "rules": rules})
    kubectl.apply({
        **about,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "server"},
        "subjects": [{"kind": "ServiceAccount", "name": "server", "namespace": kubectl.namespace}],
    })  # fmt: skip


def server(kubectl: Kubectl, folder: Path) -> KubernetesRuntime:
    config = str(as_server(kubectl, folder))
    return KubernetesRuntime(Access.find(config, namespace=kubectl.namespace))


async def test_the_documented_role_is_enough(kubectl: Kubectl, tmp_path: Path) -> None:
    grant(kubectl, role()["rules"])
    async with server(kubectl, tmp_path) as runtime:
        assert "missing" not in (await runtime.enforcement()).network
        box = await runtime.create(SPEC)
        async with box.agent() as agent:
            assert (await agent.run("echo hi")).stdout == "hi\n"
        assert await box.is_alive()
        assert len(await runtime.boxes(SPEC.owner)) == 1
        await box.destroy()
        assert not await box.is_alive()


@pytest.mark.parametrize(
    ("resource", "says"),
    [
        ("pods", 'may not (list|create|watch) pods .*resource "pods"'),
        ("configmaps", "may not get configmaps"),
    ],
)
async def test_a_rule_that_is_missing_is_named(
    kubectl: Kubectl, tmp_path: Path, resource: str, says: str
) -> None:
    grant(kubectl, [rule for rule in role()["rules"] if rule["resources"] != [resource]])
    async with server(kubectl, tmp_path) as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match=says):
            await runtime.create(SPEC)


async def test_no_exec(kubectl: Kubectl, tmp_path: Path) -> None:
    grant(kubectl, [rule for rule in role()["rules"] if rule["resources"] != ["pods/exec"]])
    async with server(kubectl, tmp_path) as runtime:
        box = await runtime.create(SPEC)
        with pytest.raises(errors.RuntimeUnavailable, match="may not create pods/exec"):
            await box.open_stream()


async def test_what_it_may_not_delete_goes_when_it_may(
    kubectl: Kubectl, tmp_path: Path, state_dir: Path
) -> None:
    """Pods of sessions that have ended, and of some that could not be made."""
    grant(kubectl, role()["rules"])
    runtime = server(kubectl, tmp_path)
    async with make_worker(state_dir, "rights", runtime=runtime) as worker:
        session, _ = await worker.table.open(SOLE_TENANT, "t")
        less = [{**rule, "verbs": [*{*rule["verbs"]} - {"delete"}]} for rule in role()["rules"]]
        grant(kubectl, less)
        await worker.table.cleanup(session)
        with pytest.raises(errors.SandboxError):
            await runtime.create(replace(SPEC, image="127.0.0.1:1/nobody/has-it:1"))
        assert len(kubectl.pods()) == 2
        grant(kubectl, role()["rules"])
        await until(lambda: not kubectl.pods())


async def test_no_policies(kubectl: Kubectl, tmp_path: Path) -> None:
    """Told, and no obstacle."""
    grant(kubectl, [rule for rule in role()["rules"] if rule["resources"] != ["networkpolicies"]])
    async with server(kubectl, tmp_path) as runtime:
        assert "it is missing: this server may not" in (await runtime.enforcement()).network
        await runtime.create(SPEC)


async def test_a_namespace_that_is_not_there(kubectl: Kubectl) -> None:
    from tests.contract.on_kubernetes import KUBECONFIG

    async with KubernetesRuntime(Access.find(KUBECONFIG, namespace="nobodys")) as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match="namespace nobodys does not exist"):
            await runtime.create(SPEC)


async def test_a_token_that_is_not_known(kubectl: Kubectl, tmp_path: Path) -> None:
    config = as_server(kubectl, tmp_path)
    (tmp_path / "token").write_text("wrong")
    async with KubernetesRuntime(Access.find(str(config))) as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match="does not know this server"):
            await runtime.create(SPEC)
