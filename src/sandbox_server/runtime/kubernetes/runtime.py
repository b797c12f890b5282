"""The kubernetes runtime: one pod per box, with the warden as PID 1."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable, SandboxError
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Runtime
from sandbox_server.runtime.box_network import NO_BRIDGE, Network
from sandbox_server.runtime.ending import Endings
from sandbox_server.runtime.kubernetes import config, failures
from sandbox_server.runtime.kubernetes.access import Access
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.box import PodBox, delete_pod, is_claimable
from sandbox_server.runtime.kubernetes.claimed import ClaimedPods
from sandbox_server.runtime.kubernetes.failures import ApiError, Pod
from sandbox_server.runtime.kubernetes.objects import SharedObjects
from sandbox_server.runtime.kubernetes.pod_streams import PodStreams
from sandbox_server.runtime.kubernetes.watch import Watch
from sandbox_server.runtime.registry import ClusterOptions
from sandbox_server.runtime.warden.zipapp import warden_version

log = structlog.get_logger(__name__)

START_S = 60.0
"""How long a pod that has a node may take to run: its image may have to be pulled."""
_LEFT_S = 120.0
"""A pod of a worker that is gone and that does not run after so long is one it did not finish."""
_WATCHED = (
    "the kubelet measures emptyDirs and evicts a pod that is over its limit (session_lost instead"
    " of a full disk)"
)
_GVISOR_MEMORY = (
    "a box over its memory limit ends as a whole (session_lost instead of reason oom): gVisor is"
    " one process to the node"
)
_T = TypeVar("_T")


class KubernetesRuntime(Runtime):
    """Makes boxes in one namespace of a cluster."""

    name = "kubernetes"
    has_pods = True

    def __init__(
        self,
        access: Access,
        options: ClusterOptions | None = None,
        *,
        start_s: float = START_S,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._api = Api(access, metrics=metrics)
        self._options = options or ClusterOptions()
        self._start_s = start_s
        self._streams = PodStreams(self._api, self._options.stream, metrics)
        self._objects = SharedObjects(self._api, streams=self._options.stream != "exec")
        self._watches: dict[str, Watch] = {}
        self._making: set[str] = set()
        self._endings = Endings()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._claimed = ClaimedPods(
            self._api, self._options, self._spawn, self._endings, start_s=start_s
        )

    def __repr__(self) -> str:
        where = f"{self._api.access.url} {self._api.namespace}"
        return f"<KubernetesRuntime {where}, {len(self._making)} starting>"

    @property
    def networks(self) -> frozenset[Network]:
        return NO_BRIDGE | {"bridge"}

    @property
    def build(self) -> str:
        return warden_version()

    async def about(self) -> str:
        try:
            version = await self._api.get("/version", "get /version")
        except ApiError as exc:
            raise failures.error_for(exc, "get /version", self._api.namespace) from exc
        where = f"{self._api.access.url}, namespace {self._api.namespace}"
        streams = await self._streams.look()
        return f"Kubernetes {version.get('gitVersion', '?')} at {where}; streams go {streams}"

    async def no_volumes(self) -> str:
        return "volumes are on the disks of this machine, and pods are not"

    async def create(self, spec: BoxSpec) -> PodBox:
        if spec.disk is not None:
            raise RuntimeUnavailable("no pod can begin with the copy of a disk")
        if spec.gpus is not None or spec.volumes:
            what = "volumes" if spec.volumes else "GPUs"
            raise InvalidRequest(f"kubernetes boxes cannot have {what}; use docker or bubblewrap")
        # Shielded as all calls here: a connection that is cancelled while it is made stays open.
        await asyncio.shield(self._spawn(self._objects.ensure()))
        if self._claimed.fits(spec):
            return self._box(await self._claimed.create(spec))
        box_id = uuid.uuid4().hex[:16]
        self._making.add(box_id)
        states = self._watch(spec.owner).states(config.pod_name(box_id))
        posting = self._spawn(self._post(config.pod_manifest(spec, box_id, self._options)))
        try:
            async with contextlib.aclosing(states):
                pod = await self._until_running(states, spec.image, await asyncio.shield(posting))
        except SandboxError:
            self._spawn(self._remove(box_id))
            raise
        except asyncio.CancelledError:
            # A request on its way cannot be called back: wait for its answer, then remove the pod.
            await asyncio.shield(self._spawn(self._remove(box_id, after=posting)))
            raise
        finally:
            self._making.discard(box_id)
        return self._box(pod)

    def _box(self, pod: Pod) -> PodBox:
        return PodBox(
            self._api, self._spawn, self._streams, pod, shared=self.shared, latest=self._latest
        )

    def _latest(self, owner: str, name: str) -> Pod | None:
        return self._watch(owner).latest(name)

    async def _post(self, manifest: Pod) -> Pod:
        try:
            return await self._api.create(self._api.path("pods"), manifest, "create pods")
        except ApiError as exc:
            if exc.status != 409 or exc.reason != "AlreadyExists":
                raise failures.error_for(exc, "create pods", self._api.namespace) from exc
            return manifest  # Made by a request whose answer was lost.

    async def _until_running(
        self, states: AsyncGenerator[Pod | None], image: str, made: Pod
    ) -> Pod:
        """The pod, running. Raises Capacity if no node takes it, RuntimeUnavailable if it does not
        start."""
        loop = asyncio.get_running_loop()
        pod: Pod = made
        try:
            async with asyncio.timeout(self._options.placement_s) as limit:
                async for state in states:
                    pod = state or pod
                    if failures.is_running(pod) and failures.ends_at(pod) is None:
                        break
                    if error := failures.why_not_started(pod, image):
                        raise error
                    if pod.get("spec", {}).get("nodeName") and not failures.unschedulable(pod):
                        limit.reschedule(loop.time() + self._start_s)
        except TimeoutError:
            self._objects.look_again()
            if why := failures.unschedulable(pod):
                raise failures.no_room(why) from None
            raise RuntimeUnavailable(
                f"a pod with image {image} did not start within {self._start_s:g} s:"
                f" {failures.why_waiting(pod)}"
            ) from None
        return pod

    def _watch(self, owner: str) -> Watch:
        selector = config.of_owner(owner)
        if selector not in self._watches:
            self._watches[selector] = Watch(self._api, selector)
        return self._watches[selector]

    async def _remove(self, box_id: str, *, after: asyncio.Task[Pod] | None = None) -> None:
        if after is not None:
            await asyncio.wait([after])
        await self._endings.end(box_id, partial(delete_pod, self._api, config.pod_name(box_id)))

    async def boxes(self, owner: str) -> list[Box]:
        await self._claimed.tidy(owner)
        found: list[Box] = []
        for pod in await self._api.objects("pods", config.of_owner(owner)):
            box = self._box(pod)
            if box.holding.owner != owner:
                continue  # Its label is the same.
            if failures.is_running(pod):
                found.append(box)
            elif box.id not in self._making:
                self._spawn(box.remove())
        return found

    @property
    def shared(self) -> bool:
        return self._options.shared

    async def shared_boxes(self, owners: Sequence[str]) -> Sequence[PodBox]:
        found: list[PodBox] = []
        for pod in await self._api.objects("pods", config.of_owners(owners)):
            box = self._box(pod)
            if box.holding.owner not in owners or not is_claimable(pod):
                continue
            if failures.is_running(pod):
                found.append(box)
            elif failures.age_s(pod) > _LEFT_S:
                self._spawn(box.remove())
        return found

    async def shared_box(self, box_id: str) -> PodBox | None:
        for pod in await self._api.objects("pods", config.of_box(box_id)):
            if failures.is_running(pod) and is_claimable(pod):
                return self._box(pod)
        return None

    async def enforcement(self) -> Enforcement:
        await self._objects.ensure_policy()
        log.info("pods.streams", way=await self._streams.look())
        return _enforcement(gvisor=self._options.gvisor, no_policy=self._objects.no_policy)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._endings.close()
        for watch in self._watches.values():
            await watch.stop()
        await self._claimed.close()
        await self._api.close()

    def _spawn(self, work: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            # Whoever waits for it is told, too; nobody may be.
            log.info("pods.call_failed", why=str(exc))


def _enforcement(*, gvisor: bool, no_policy: str) -> Enforcement:
    """What a cluster enforces on pods, as far as a namespace can tell. no_policy: why there is no
    NetworkPolicy."""
    return Enforcement(
        memory=_GVISOR_MEMORY if gvisor else "",
        pids="pods have no limit of their own: set podPidsLimit of the kubelets",
        disk=_WATCHED,
        inodes="emptyDirs have no limit of files",
        syscalls="filtered by the container runtime's default profile (RuntimeDefault), not by ours"
        if not gvisor
        else "filtered by gVisor's own kernel, not by our seccomp profile",
        network="boxes without a network are pods under the NetworkPolicy sandbox-deny-all, which"
        " holds only where the cluster's network plugin enforces such policies"
        + (f"; and it is missing: {no_policy}" if no_policy else ""),
        absent=frozenset({"pids"}),
    )
