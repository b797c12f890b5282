"""The operator's account at E2B: sandboxes made, found, prolonged and ended."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any

import e2b
from e2b import AsyncSandbox, SandboxQuery, SandboxState

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.e2b.failures import Failures

_REQUEST_S = 60.0


class E2bAccount:
    """Where E2B is and who calls. What is left out comes from E2B's own variables: E2B_API_KEY,
    E2B_API_URL, E2B_SANDBOX_URL, E2B_DOMAIN."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_url: str | None = None,
        sandbox_url: str | None = None,
        domain: str | None = None,
    ) -> None:
        self._key = api_key or os.environ.get("E2B_API_KEY") or None
        given = {"api_url": api_url, "sandbox_url": sandbox_url, "domain": domain}
        self._options: dict[str, Any] = {name: text for name, text in given.items() if text}
        self.failures = Failures(self._key)
        self.url = e2b.ConnectionConfig(**self._options).api_url

    def __repr__(self) -> str:
        return f"<E2bAccount {self.url}>"

    async def create(
        self,
        template: str | None,
        *,
        lifetime_s: float,
        metadata: Mapping[str, str],
        env: Mapping[str, str],
        internet: bool,
    ) -> AsyncSandbox:
        """Raises Capacity, RuntimeUnavailable."""
        async with self.failures.translated("a new sandbox"):
            try:
                return await AsyncSandbox.create(
                    template,
                    timeout=math.ceil(lifetime_s),
                    metadata=dict(metadata),
                    envs=dict(env),
                    allow_internet_access=internet,
                    **self._params(),
                )
            except e2b.NotFoundException as exc:
                message = f"E2B has no template {template or 'base'!r} for this account ({exc})"
                raise RuntimeUnavailable(message) from exc

    async def connect(self, sandbox_id: str, *, lifetime_s: float) -> AsyncSandbox:
        """A sandbox that runs; it lives at least this much longer. Raises SessionLost,
        RuntimeUnavailable."""
        async with self.failures.translated(f"box {sandbox_id}"):
            return await AsyncSandbox.connect(
                sandbox_id, timeout=math.ceil(lifetime_s), **self._params()
            )

    async def prolong(self, sandbox_id: str, *, lifetime_s: float) -> None:
        """Raises SessionLost, RuntimeUnavailable."""
        async with self.failures.translated(f"box {sandbox_id}"):
            await AsyncSandbox.set_timeout(sandbox_id, math.ceil(lifetime_s), **self._params())

    async def kill(self, sandbox_id: str) -> None:
        """Harmless where it is gone. Raises RuntimeUnavailable."""
        async with self.failures.translated(f"box {sandbox_id}"):
            with contextlib.suppress(e2b.NotFoundException):
                await AsyncSandbox.kill(sandbox_id, **self._params())

    async def is_running(self, sandbox_id: str) -> bool:
        """Raises RuntimeUnavailable."""
        async with self.failures.translated(f"box {sandbox_id}"):
            try:
                info = await AsyncSandbox.get_info(sandbox_id, **self._params())
            except e2b.NotFoundException:
                return False
            return info.state == SandboxState.RUNNING

    async def memory_and_disk(self, sandbox_id: str) -> tuple[int, int] | None:
        """Bytes in use by the last of E2B's measurements; None if there is none yet."""
        async with self.failures.translated(f"box {sandbox_id}"):
            points = await AsyncSandbox.get_metrics(sandbox_id, **self._params())
        return (points[-1].mem_used, points[-1].disk_used) if points else None

    async def sandboxes(self, metadata: Mapping[str, str]) -> list[str]:
        """The ids of those that run and have this metadata. Raises RuntimeUnavailable."""
        query = SandboxQuery(metadata=dict(metadata), state=[SandboxState.RUNNING])
        found: list[str] = []
        async with self.failures.translated("the list of sandboxes"):
            pages = AsyncSandbox.list(query, **self._params())
            while pages.has_next:
                found += [info.sandbox_id for info in await pages.next_items()]
        return found

    def _params(self) -> dict[str, Any]:
        """Raises RuntimeUnavailable without a key."""
        if self._key is None:
            raise RuntimeUnavailable(
                "the e2b runtime needs an API key: set SANDBOX_E2B_API_KEY, or E2B_API_KEY"
            )
        return {**self._options, "api_key": self._key, "request_timeout": _REQUEST_S}
