"""A namespace of a test's own on the cluster that scripts/cluster.sh has started."""

import asyncio
import base64
import json
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime
from sandbox_server.runtime.registry import ClusterOptions
from tests.contract.on_kubernetes import KUBECONFIG
from tests.run import run_owner
from tests.waiting import PATIENCE_S

SPEC = BoxSpec(owner=run_owner("pods"), deadman_s=300)

collect_ignore_glob = [] if KUBECONFIG else ["test_*.py"]


class Kubectl:
    """The operator of the cluster, in a namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", KUBECONFIG, "--namespace", self.namespace, *words],
            input=given, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))

    def apply(self, body: dict[str, Any]) -> None:
        self("apply", "-f", "-", given=json.dumps(body))

    def pods(self) -> list[dict[str, Any]]:
        return list(self.json("get", "pods")["items"])


@pytest.fixture
def kubectl() -> Iterator[Kubectl]:
    operator = Kubectl(f"test-{uuid.uuid4().hex[:8]}")
    operator("create", "namespace", operator.namespace)
    try:
        operator.apply({"apiVersion": "v1", "kind": "ServiceAccount",
                        "metadata": {"name": "server"}})  # fmt: skip
        yield operator
    finally:
        operator("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        operator("delete", "namespace", operator.namespace, "--wait=false")


@pytest.fixture
async def runtime(kubectl: Kubectl) -> AsyncIterator[KubernetesRuntime]:
    async with runtime_of(kubectl) as made:
        yield made


def runtime_of(kubectl: Kubectl, **options: Any) -> KubernetesRuntime:
    """As the administrator of the cluster."""
    access = Access.find(KUBECONFIG, namespace=kubectl.namespace)
    return KubernetesRuntime(access, ClusterOptions(**options))


def as_server(kubectl: Kubectl, folder: Path) -> Path:
    """A kubeconfig of the service account `server`, which may do what a role allows."""
    while "secrets" not in (account := kubectl.json("get", "serviceaccount", "server")):
        time.sleep(0.1)  # The controller that makes it may be late, as after a fault.
    secret = kubectl.json("get", "secret", account["secrets"][0]["name"])
    config = yaml.safe_load(Path(KUBECONFIG).read_text())
    config["users"][0]["user"] = {"tokenFile": "token"}
    (folder / "token").write_bytes(base64.b64decode(secret["data"]["token"]))
    (folder / "config").write_text(json.dumps(config))
    return folder / "config"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)
