"""One pod as a box, and who has it: that is written on the pod itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import SandboxError, SessionLost
from sandbox_server.runtime.base import Holding, SharedBox
from sandbox_server.runtime.kubernetes import agent_sandbox, config, failures
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.failures import ApiError, Pod
from sandbox_server.runtime.kubernetes.pod_streams import PodAddress, PodStreams
from sandbox_server.runtime.kubernetes.stream import open_exec
from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden.client import WardenBox, WardenClient

log = structlog.get_logger(__name__)

_END_S = 5.0
_MOST_NOTE = 200_000
"""Characters: all annotations of an object have 256 KiB together."""
_ATTEMPTS = 5
Spawn = Callable[[Coroutine[object, object, Any]], asyncio.Task[Any]]


class PodBox(WardenBox, SharedBox):
    """A pod as it was found; what it is from then on is asked by its name."""

    def __init__(
        self,
        api: Api,
        spawn: Spawn,
        streams: PodStreams,
        pod: Pod,
        *,
        shared: bool,
        latest: Callable[[str, str], Pod | None],
    ) -> None:
        """spawn: starts a task that the runtime waits for when it is closed. shared: whether others
        may claim it. latest: what is known of a pod, by its owner and name."""
        about = pod["metadata"]
        super().__init__(about["labels"].get(config.LABEL_BOX, ""))
        self.holding = holding_of(pod)
        self._api = api
        self._spawn = spawn
        self._streams = streams
        self._shared = shared
        self._latest = latest
        self._warm = _is_warm(pod)
        self._name = str(about["name"])
        notes = about.get("annotations") or {}
        self._sandbox_claim = str(notes.get(config.NOTE_SANDBOX_CLAIM, ""))
        self._gone = f"box {self.id} is gone"
        self._address = PodAddress(self._name, gone=self._gone, address=failures.address(pod))
        self._changing = asyncio.Lock()
        self._found: Holding | None = None
        """What the pod had instead of `holding` when it was last to be changed; None: no pod."""

    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> WardenClient:
        return super().agent(epoch=self.holding.fence(epoch), deadman_s=deadman_s)

    async def open_stream(self) -> ByteStream:
        try:
            return await self._streams.open(self._address)
        except SessionLost:
            raise SessionLost(await self._why_gone()) from None

    async def _why_gone(self) -> str:
        """A pod that has ended stays until somebody deletes it, and says why it has."""
        with contextlib.suppress(SandboxError, ApiError):
            if why := failures.why_ended(await self._show()):
                return f"{self._gone}: {why}"
        return self._gone

    async def _show(self) -> Pod:
        return await self._api.get(self._api.path("pods", self._name), "get pods")

    async def is_alive(self) -> bool:
        try:
            return failures.is_running(await self._show())
        except ApiError:
            return False

    @property
    def ends_at(self) -> float | None:
        pod = self._latest(self.holding.owner, self._name)
        return None if pod is None else failures.ends_at(pod)

    # Who has it. Every change names the number of claims it expects, and the API server applies it
    # in one step. One that named the pod's version would fail whenever the kubelet reports.

    async def claim(self, owner: str, note: str) -> bool:
        return await self._whole(self._claim(owner, _fitting(note, self.id)))

    async def _claim(self, owner: str, note: str) -> bool:
        async with self._changing:
            wanted = Holding(owner=owner, claims=self.holding.claims + 1, note=note)
            changes = [
                config.setting("labels", config.LABEL_OWNER, config.label_of(owner)),
                config.setting("annotations", config.NOTE_OWNER, owner),
                config.setting("annotations", config.NOTE_ENTRY, note),
                *([config.unsetting("labels", config.LABEL_WARM)] if self._warm else ()),
            ]
            if await self._patch(wanted.claims, changes):
                return True
            if self._found != wanted:
                return False
            self.holding = wanted  # A claim whose answer was lost fails when it is repeated.
            return True

    async def write(self, note: str, *, warm: str = "") -> bool:
        return await self._whole(self._write(_fitting(note, self.id), warm))

    async def _write(self, note: str, warm: str) -> bool:
        changes = [config.setting("annotations", config.NOTE_ENTRY, note)]
        if warm:
            digest = hashlib.sha256(warm.encode()).hexdigest()[:16]
            changes.append(config.setting("labels", config.LABEL_WARM, digest))
        async with self._changing:
            return await self._patch(self.holding.claims, changes)

    async def _whole(self, work: Coroutine[object, object, bool]) -> bool:
        """Whoever is cancelled does not cancel it: a connection that is cancelled while it is made
        stays open."""
        return bool(await asyncio.shield(self._spawn(work)))

    async def _patch(self, claims: int, changes: list[dict[str, str]]) -> bool:
        """Whether the pod was as seen, and is changed."""
        expected = config.setting("annotations", config.NOTE_CLAIMS, str(self.holding.claims))
        operations = [
            {**expected, "op": "test"},
            config.setting("annotations", config.NOTE_CLAIMS, str(claims)),
            *changes,
        ]
        path = self._api.path("pods", self._name)
        try:
            pod = await self._api.patch(path, operations, "patch pods")
        except ApiError as exc:
            self._found = await self._look()
            if self._found == self.holding:
                raise failures.error_for(exc, "patch pods", self._api.namespace) from exc
            log.info("pod.not_changed", pod=self._name, found=self._found and self._found.owner)
            return False
        self.holding, self._warm = holding_of(pod), _is_warm(pod)
        return True

    async def _look(self) -> Holding | None:
        with contextlib.suppress(ApiError):
            return holding_of(await self._show())
        return None

    async def _is_still_ours(self) -> bool:
        """Have nobody claim it from now on; False if somebody has."""
        async with self._changing:
            for _ in range(_ATTEMPTS):
                if await self._patch(self.holding.claims + 1, []) or self._found is None:
                    return True
                if self._found.owner != self.holding.owner:
                    return False
                self.holding = self._found  # A claim of ours that nobody waited for.
        return False

    async def destroy(self) -> None:
        """Not if another worker has claimed it."""
        # Who is cancelled between the two steps would leave a pod that has ended.
        await asyncio.shield(self._spawn(self._destroy()))

    async def _destroy(self) -> None:
        """Its warden ends it at once, so that nothing runs on when the pod is deleted."""
        if self._shared and not await self._is_still_ours():
            log.warning("box.not_ours", box=self.id, owner=self._found and self._found.owner)
            return
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_END_S):
                ending = await open_exec(
                    self._api, self._name, config.end_command(), gone=self._gone
                )
                try:
                    while await ending.read():
                        pass
                finally:
                    await ending.close()
        await self.remove()

    async def remove(self) -> None:
        """Delete the pod, and the claim by which agent-sandbox gave it to us. Raises
        RuntimeUnavailable."""
        if self._sandbox_claim:
            await delete_claim(self._api, self._sandbox_claim)
        await delete_pod(self._api, self._name)


async def delete_pod(api: Api, name: str) -> None:
    """Idempotent. Raises RuntimeUnavailable.

    Without the grace period, in which the kubelet would wait for a warden that takes no signals:
    the API server forgets the pod at once, its node removes it within seconds. On a node that is
    away the warden ends by itself, as nobody talks to it.
    """
    await api.delete(api.path("pods", name), "delete pods", gracePeriodSeconds=0)


async def delete_claim(api: Api, name: str) -> None:
    """A SandboxClaim, and with it its Sandbox. Idempotent. Raises RuntimeUnavailable."""
    path = api.path("sandboxclaims", name, group=agent_sandbox.GROUP)
    await api.delete(path, "delete sandboxclaims", propagationPolicy="Background")


def holding_of(pod: Pod) -> Holding:
    """Who has a pod, by its annotations."""
    notes = pod["metadata"].get("annotations") or {}
    claims = notes.get(config.NOTE_CLAIMS, "")
    return Holding(
        owner=notes.get(config.NOTE_OWNER, ""),
        claims=int(claims) if claims.isdecimal() else 0,
        note=notes.get(config.NOTE_ENTRY, ""),
    )


def _is_warm(pod: Pod) -> bool:
    return config.LABEL_WARM in pod["metadata"]["labels"]


def is_claimable(pod: Pod) -> bool:
    """Not one of a server of an earlier version, which would not see that others claim it."""
    return config.NOTE_CLAIMS in (pod["metadata"].get("annotations") or {})


def _fitting(note: str, box_id: str) -> str:
    if len(note) <= _MOST_NOTE:
        return note
    log.warning("pod.note_too_large", box=box_id, size=len(note))
    return ""
