"""What a namespace has to have before its first box: the warden, and the policy of its network."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.runtime.kubernetes import config, failures
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.failures import ApiError

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 600.0
_KEPT_S = 86400.0
"""An older warden that no pod uses is kept so long: a server that has it may be starting."""
_POLICIES = "networking.k8s.io/v1"


class SharedObjects:
    """Objects that all servers of a namespace share, made by the first that needs them."""

    def __init__(self, api: Api, *, streams: bool) -> None:
        """streams: whether pods are reached over TCP."""
        self._api = api
        self._policies = [config.deny_all(), *([config.stream_policy()] if streams else [])]
        self._seen_at = -_LOOK_AGAIN_S
        self._making = asyncio.Lock()
        self.no_policy = ""
        """Why there is no NetworkPolicy; empty if there is one."""

    async def ensure(self) -> None:
        """Raises SandboxError if the warden cannot be put there."""
        async with self._making:
            if time.monotonic() - self._seen_at < _LOOK_AGAIN_S:
                return
            await self._make("configmaps", config.warden_map())
            await self.ensure_policy()
            self._seen_at = time.monotonic()
            with contextlib.suppress(SandboxError, ApiError):
                await self._remove_old_wardens()

    def look_again(self) -> None:
        """A pod did not start: somebody may have removed one of them."""
        self._seen_at = -_LOOK_AGAIN_S

    async def ensure_policy(self) -> None:
        """Its lack is told, and no reason to have no boxes: who runs the cluster may keep a policy
        of his own, and not let us make any."""
        try:
            for policy in self._policies:
                await self._make("networkpolicies", policy, group=_POLICIES)
            self.no_policy = ""
        except SandboxError as exc:
            self.no_policy = exc.message
            log.warning("pods.no_network_policy", why=exc.message)

    async def _make(self, kind: str, body: dict[str, Any], *, group: str = "") -> None:
        name = body["metadata"]["name"]
        try:
            await self._api.get(self._api.path(kind, name, group=group), f"get {kind}")
        except ApiError:
            with contextlib.suppress(ApiError):  # Somebody else was first.
                await self._api.create(self._api.path(kind, group=group), body, f"create {kind}")

    async def _remove_old_wardens(self) -> None:
        maps = await self._api.objects("configmaps", config.MARKED)
        if len(maps) == 1:
            return
        pods = await self._api.objects("pods", config.MARKED)
        used = {pod["metadata"]["labels"].get(config.LABEL_WARDEN) for pod in pods}
        for each in maps:
            name = each["metadata"]["name"]
            if name in used or name == config.warden_map_name():
                continue
            if failures.age_s(each) > _KEPT_S:
                await self._api.delete(self._api.path("configmaps", name), "delete configmaps")
