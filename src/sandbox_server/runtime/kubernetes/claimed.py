"""Pods that are claimed from a warm pool of kubernetes-sigs/agent-sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import Capacity, RuntimeUnavailable, SandboxError
from sandbox_server.runtime.base import BoxSpec, Limits
from sandbox_server.runtime.ending import Endings
from sandbox_server.runtime.kubernetes import agent_sandbox, config, failures
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.box import Spawn, delete_claim
from sandbox_server.runtime.kubernetes.failures import ApiError, Pod
from sandbox_server.runtime.kubernetes.watch import Watch
from sandbox_server.runtime.registry import ClusterOptions

log = structlog.get_logger(__name__)

_CLAIMS = "sandboxclaims"
_POOLS = "sandboxwarmpools"
_TEMPLATES = "sandboxtemplates"
_KEPT_S = 86400.0


class ClaimedPods:
    """Claims boxes with the limits of the server; others are pods of their own, as a pool for each
    size that somebody asks for once would be many."""

    def __init__(
        self, api: Api, options: ClusterOptions, spawn: Spawn, endings: Endings, *, start_s: float
    ) -> None:
        self._endings = endings
        self._api = api
        self._options = options
        self._spawn = spawn
        self._start_s = start_s
        self._limits: Limits | None = options.warm_limits
        self._known: dict[str, asyncio.Task[None]] = {}
        """The pools that are there, or being made."""
        self._making: set[str] = set()
        self._watches: dict[str, Watch] = {}

    def fits(self, spec: BoxSpec) -> bool:
        return self._options.warm_pool > 0 and spec.limits == self._limits

    async def create(self, spec: BoxSpec) -> Pod:
        """A pod that runs, as a box of ours. Raises Capacity if the controller gives none,
        RuntimeUnavailable if it does not start."""
        pool = await self._pool(spec)
        box_id = uuid.uuid4().hex[:16]
        self._making.add(box_id)
        states = self._watch(spec.owner).states(config.pod_name(box_id))
        posting = self._spawn(self._create(_CLAIMS, agent_sandbox.claim(spec.owner, box_id, pool)))
        try:
            async with contextlib.aclosing(states):
                await asyncio.shield(posting)
                sandbox = await self._until_ready(states, pool)
            return await asyncio.shield(
                self._spawn(self._take(sandbox, agent_sandbox.ownership(spec.owner, box_id)))
            )
        except (SandboxError, asyncio.CancelledError):
            await asyncio.shield(self._spawn(self._give_back(box_id, posting)))
            raise
        finally:
            self._making.discard(box_id)

    async def _pool(self, spec: BoxSpec) -> str:
        pod = agent_sandbox.warm_pod(spec, self._options)
        name = agent_sandbox.pool_name(pod)
        known = self._known.get(name)
        if known is None or (known.done() and known.exception() is not None):
            known = self._known[name] = self._spawn(self._make_pool(pod))
        await asyncio.shield(known)
        return name

    async def _make_pool(self, pod: dict[str, Any]) -> None:
        """Its size is left alone if it is there: whoever runs the cluster may have changed it."""
        pool = agent_sandbox.warm_pool(pod, self._options.warm_pool)
        for kind, body in ((_TEMPLATES, agent_sandbox.template(pod)), (_POOLS, pool)):
            if await self._create(kind, body):
                log.info("pods.pool_made", kind=kind, name=body["metadata"]["name"])
        with contextlib.suppress(SandboxError, ApiError):
            await self._remove_old_pools()

    async def _remove_old_pools(self) -> None:
        """Those of another version, whose pods nobody claims any more. Who still does makes it
        anew."""
        others = f"{config.MARKED},{config.LABEL_WARDEN}!={config.warden_map_name()}"
        for kind in (_POOLS, _TEMPLATES):
            for each in await self._api.objects(kind, others, group=agent_sandbox.GROUP):
                if failures.age_s(each) > _KEPT_S:
                    name = each["metadata"]["name"]
                    path = self._api.path(kind, name, group=agent_sandbox.GROUP)
                    await self._api.delete(path, f"delete {kind}")

    async def _create(self, kind: str, body: dict[str, Any]) -> bool:
        """False if it is there: also where it was made by a request whose answer was lost."""
        path, what = self._api.path(kind, group=agent_sandbox.GROUP), f"create {kind}"
        try:
            await self._api.create(path, body, what)
        except ApiError as exc:
            if exc.status != 409:
                raise failures.error_for(exc, what, self._api.namespace) from exc
            return False
        return True

    async def _until_ready(self, states: AsyncGenerator[dict[str, Any] | None], pool: str) -> str:
        """The name of the Sandbox."""
        loop = asyncio.get_running_loop()
        claimed: dict[str, Any] = {}
        began = False
        try:
            async with asyncio.timeout(self._options.placement_s) as limit:
                async for state in states:
                    claimed = state or claimed
                    if agent_sandbox.is_ready(claimed):
                        return agent_sandbox.sandbox_of(claimed)
                    if agent_sandbox.sandbox_of(claimed) and not began:
                        began = True
                        limit.reschedule(loop.time() + self._start_s)
        except TimeoutError:
            pass
        # The pool may have been removed by whoever runs the cluster: look for it next time.
        self._known.pop(pool, None)
        why = agent_sandbox.why_not_ready(claimed)
        if began:
            raise RuntimeUnavailable(
                f"a sandbox of warm pool {pool} did not start within {self._start_s:g} s:"
                f" {why or 'its controller says nothing of it'}"
            )
        raise Capacity(
            f"warm pool {pool} gave no sandbox within {self._options.placement_s:g} s:"
            f" {why or 'no controller of agent-sandbox answered'}"
        )

    async def _take(self, sandbox: str, changes: list[dict[str, str]]) -> Pod:
        path = self._api.path("sandboxes", sandbox, group=agent_sandbox.SANDBOXES)
        try:
            name = agent_sandbox.pod_of(await self._api.get(path, "get sandboxes"))
            return await self._api.patch(self._api.path("pods", name), changes, "patch pods")
        except ApiError as exc:
            raise RuntimeUnavailable(
                f"sandbox {sandbox} was ready and has no pod to be used: {exc.message}; try again"
            ) from exc

    async def _give_back(self, box_id: str, posting: asyncio.Task[bool]) -> None:
        """A request on its way cannot be called back: wait for its answer first."""
        await asyncio.wait([posting])
        await self._endings.end(box_id, partial(delete_claim, self._api, config.pod_name(box_id)))

    async def tidy(self, owner: str) -> None:
        """Remove claims of this owner that no box came of, as he was killed meanwhile."""
        if not self._options.warm_pool:
            return
        selector = config.of_owner(owner)
        claims = await self._api.objects(_CLAIMS, selector, group=agent_sandbox.GROUP)
        for about in (each["metadata"] for each in claims):
            box_id = about["labels"].get(config.LABEL_BOX, "")
            if about.get("annotations", {}).get(config.NOTE_OWNER) != owner:
                continue  # Of an owner whose label is the same.
            if box_id not in self._making and not await self._has_pod(box_id):
                await delete_claim(self._api, about["name"])

    async def _has_pod(self, box_id: str) -> bool:
        """Whoever has it by now."""
        return bool(await self._api.objects("pods", config.of_box(box_id)))

    def _watch(self, owner: str) -> Watch:
        selector = config.of_owner(owner)
        if selector not in self._watches:
            self._watches[selector] = Watch(
                self._api, selector, kind=_CLAIMS, group=agent_sandbox.GROUP
            )
        return self._watches[selector]

    async def close(self) -> None:
        for watch in self._watches.values():
            await watch.stop()
