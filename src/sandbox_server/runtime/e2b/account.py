"""The operator's account at E2B: sandboxes made, found, prolonged and ended. What its SDK
raises becomes errors of ours here: its exceptions never leave this package."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import e2b
import httpx
from connectrpc.errors import ConnectError
from e2b import AsyncSandbox, SandboxQuery, SandboxState
from e2b.envd.rpc import ahandle_rpc_exception_with_health
from e2b.exceptions import (
    SandboxNotFoundException,
    SandboxNotRunningException,
    ServiceBusyException,
)

from sandbox_sdk.protocol import errors

_REQUEST_S = 60.0
RETRY_S = 5.0
_SHOWN = 300
_GONE = (SandboxNotFoundException, SandboxNotRunningException)
_BUSY = (e2b.RateLimitException, ServiceBusyException)
FOREIGN = (
    e2b.SandboxException,
    e2b.AuthenticationException,
    ServiceBusyException,
    ConnectError,
    httpx.HTTPError,
    OSError,
)
"""All that a call of the SDK may raise besides a mistake of ours."""


Health = Callable[[], Awaitable[bool | None]]


class Failures:
    """Makes errors of exceptions, without the API key, whatever they say."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret

    def error_for(self, exc: Exception, what: str) -> errors.SandboxError:
        """what: the thing that was asked for, as `box ID`."""
        if isinstance(exc, errors.SandboxError):
            return exc
        if isinstance(exc, _GONE):
            return errors.SessionLost(f"{what} has ended: E2B does not have it any more")
        said = self._said(exc)
        if isinstance(exc, _BUSY):
            return errors.Capacity(
                f"E2B is busy, or the account has reached its limit: {said}; retry in"
                f" {RETRY_S:g} s",
                retry_after_s=RETRY_S,
            )
        if isinstance(exc, e2b.AuthenticationException):
            return errors.RuntimeUnavailable(
                f"E2B refuses the API key: {said}; check SANDBOX_E2B_API_KEY, or E2B_API_KEY"
            )
        if isinstance(exc, e2b.NotFoundException):
            return errors.NotFound(f"{what}: {said}")
        return errors.RuntimeUnavailable(f"{what} cannot be reached at E2B: {said}")

    def file_error_for(self, exc: Exception, what: str, path: str) -> errors.SandboxError:
        if isinstance(exc, _GONE):
            return self.error_for(exc, what)
        said = self._said(exc)
        if isinstance(exc, e2b.NotFoundException):
            return errors.FileMissing(f"{path}: {said}")
        if isinstance(exc, e2b.NotEnoughSpaceException):
            return errors.DiskFull(f"{path}: {said}")
        if isinstance(exc, e2b.InvalidArgumentException):
            return errors.InvalidPath(f"{path}: {said}")
        return self.error_for(exc, what)

    @contextlib.asynccontextmanager
    async def translated(
        self, what: str, *, path: str | None = None, health: Health | None = None
    ) -> AsyncIterator[None]:
        """health: asked where an exception leaves open whether a sandbox is gone."""
        try:
            yield
        except FOREIGN as raised:
            exc: BaseException = raised
            if isinstance(raised, ConnectError):
                exc = await ahandle_rpc_exception_with_health(raised, health)
            if isinstance(exc, asyncio.CancelledError):
                raise exc from None
            assert isinstance(exc, Exception)
            if path is None:
                raise self.error_for(exc, what) from raised
            raise self.file_error_for(exc, what, path) from raised

    def _said(self, exc: Exception) -> str:
        text = " ".join((str(exc) or type(exc).__name__).split())
        if self._secret:
            text = text.replace(self._secret, "…")
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


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
                raise errors.RuntimeUnavailable(message) from exc

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
            raise errors.RuntimeUnavailable(
                "the e2b runtime needs an API key: set SANDBOX_E2B_API_KEY, or E2B_API_KEY"
            )
        return {**self._options, "api_key": self._key, "request_timeout": _REQUEST_S}
