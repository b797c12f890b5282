"""The chart of deploy/kubernetes, installed on the cluster of the tests."""

import asyncio
import base64
import contextlib
import functools
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from sandbox_server.runtime.kubernetes import Access
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.tasks import TaskSet, stop
from tests.contract.on_kubernetes import KUBECONFIG
from tests.deploy.chart import RELEASE, rendered
from tests.deploy.stack import ROOT, build_images, run
from tests.kubernetes.conftest import Kubectl

COMPONENT = "app.kubernetes.io/component"
_LOOK_S = 0.2
_LONG_S = 300.0
_SMALL = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], Mapping) and isinstance(other[name], Mapping):
            both[name] = merged(one[name], other[name])
    return both


class Release:
    """In namespaces of its own. The cluster has neither DNS nor Services: hostAliases name Redis,
    and variables the API server."""

    def __init__(self, kubectl: Kubectl, values: Mapping[str, Any]) -> None:
        self.kubectl = kubectl
        self.boxes = Kubectl(f"{kubectl.namespace}-boxes")
        self._api_versions = kubectl("api-versions").split()
        self._values = merged(_here(), values)

    def apply(self, **values: Any) -> None:
        self._values = merged(self._values, values)
        objects = rendered(
            self._values, namespace=self.kubectl.namespace, api_versions=self._api_versions
        )
        for kubectl in (self.boxes, self.kubectl):
            places = (None, kubectl.namespace)
            mine = [each for each in objects if each["metadata"].get("namespace") in places]
            body = {"apiVersion": "v1", "kind": "List", "items": mine}
            kubectl("apply", "-f", "-", given=json.dumps(body))

    async def install(self) -> None:
        run(str(ROOT / "deploy/kubernetes/new-secret.sh"), self.kubectl.namespace,
            KUBECONFIG=KUBECONFIG)  # fmt: skip
        self.apply(workers={"replicas": 0}, coordinators={"replicas": 0})
        await eventually(lambda: len(self.ready("redis")) == 1)
        (redis,) = self.ready("redis")
        alias = {"ip": redis["status"]["podIP"], "hostnames": [f"{RELEASE}-redis"]}
        self.apply(hostAliases=[alias], workers={"replicas": 2}, coordinators={"replicas": 2})
        await self.until_rolled_out()

    def pods(self, part: str) -> list[dict[str, Any]]:
        return list(self.kubectl.json("get", "pods", "-l", f"{COMPONENT}={part}")["items"])

    def ready(self, part: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.pods(part)
            if _condition(pod, "Ready").get("status") == "True"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    async def until_rolled_out(self) -> None:
        async with asyncio.timeout(_LONG_S):
            for name in self.kubectl("get", "deployments,statefulsets", "-o", "name").split():
                words = ("rollout", "status", name, "--timeout=50s")
                while True:
                    with contextlib.suppress(AssertionError):
                        await asyncio.to_thread(self.kubectl, *words)
                        break

    def api_key(self) -> str:
        secret = self.kubectl.json("get", "secret", f"{RELEASE}-keys")
        return base64.b64decode(secret["data"]["api-keys"]).decode().removeprefix("default:")

    def logs(self) -> str:
        """Of workers, without requests."""
        words = ("logs", "--prefix", "--tail=2000", "-l", f"{COMPONENT}=worker")
        try:
            lines = self.kubectl(*words).splitlines()
        except AssertionError as exc:  # A container that is being replaced has none.
            return str(exc)
        return "\n".join(line for line in lines if '"event": "request"' not in line)

    def remove(self) -> None:
        """Namespaces that are being deleted get no new pods."""
        for each in (self.kubectl, self.boxes):
            with contextlib.suppress(AssertionError):
                each("delete", "namespace", each.namespace, "--wait=false")
                each("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")


def evict(kubectl: Kubectl, pod: Mapping[str, Any]) -> None:
    """As `kubectl drain` does. Fails where a budget forbids it."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}/eviction"
    kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body))


def _condition(pod: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = (each for each in pod["status"].get("conditions", ()) if each["type"] == kind)
    return next(found, {})


def _here() -> dict[str, Any]:
    """Images that are on the nodes, and what stands in for Services."""
    images = build_images()
    run(str(ROOT / "scripts/cluster.sh"), "load", images["SERVER_IMAGE"], images["REDIS_IMAGE"])
    repository, _, tag = images["SERVER_IMAGE"].partition(":")
    config = yaml.safe_load(Path(KUBECONFIG).read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    few = {"SANDBOX_POOL_SIZE": "1", "SANDBOX_MIN_POOL_SIZE": "0", "SANDBOX_MAX_POOL_SIZE": "1"}
    return {
        "image": {"repository": repository, "tag": tag},
        "redis": {"image": images["REDIS_IMAGE"], "persistence": {"enabled": False}, **_SMALL},
        # A machine that is busy takes a minute to remove a pod.
        "settings": {"SANDBOX_GRACE": "90s"},
        "terminationGracePeriodSeconds": 240,
        "coordinators": {
            "settings": {"SANDBOX_PATIENCE": "180s"},
            "drainTimeout": "190s",
            **_SMALL,
        },
        "workers": {"settings": few, **_SMALL},
        "extraEnv": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": server.hostname},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(server.port)},
        ],
    }


class Service:
    """Does what kube-proxy does: a connection goes to one of the Service's endpoints, which are
    ready pods, as of a moment ago."""

    def __init__(self, namespace: str, name: str = RELEASE) -> None:
        self._api = Api(Access.find(KUBECONFIG, namespace=namespace))
        self._name = name
        self._endpoints: list[str] = []
        self._connections: TaskSet[None] = TaskSet()
        self._stack = contextlib.AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self._api.close)
        self._stack.push_async_callback(self._connections.stop)
        await self._look()
        following = asyncio.create_task(self._follow())
        self._stack.push_async_callback(stop, following)
        serving = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._stack.callback(serving.close)
        self.url = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _look(self) -> None:
        found = await self._api.get(self._api.path("endpoints", self._name), "get endpoints")
        self._endpoints = [
            address["ip"]
            for subset in found.get("subsets", ())
            for address in subset.get("addresses", ())
        ]

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.start(functools.partial(self._pass_on, reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(_close, writer)
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(random.choice(self._endpoints), 8000)
                stack.push_async_callback(_close, back)
                ways = ((reader, back), (there, writer))
                copying = [asyncio.create_task(_copy(*way)) for way in ways]
                stack.push_async_callback(stop, *copying)
                await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def eventually(condition: Callable[[], bool]) -> None:
    """As `until`, for what takes minutes on a machine that is busy."""
    async with asyncio.timeout(_LONG_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def installed(namespace: str, **values: Any) -> AsyncIterator[Release]:
    kubectl = Kubectl(namespace)
    kubectl("create", "namespace", namespace)
    made = Release(kubectl, values)
    try:
        await made.install()
        yield made
    finally:
        made.remove()
