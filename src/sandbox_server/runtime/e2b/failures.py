"""What E2B's SDK raises, as errors of ours. Its exceptions never leave this package."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import e2b
import httpx
from connectrpc.errors import ConnectError
from e2b.envd.rpc import ahandle_rpc_exception_with_health
from e2b.exceptions import (
    SandboxNotFoundException,
    SandboxNotRunningException,
    ServiceBusyException,
)

from sandbox_sdk.protocol import errors

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
