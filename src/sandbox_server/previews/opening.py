"""Opens the preview server that the settings ask for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Protocol, Self

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.api.server import bound
from sandbox_server.previews.limits import PreviewLimits
from sandbox_server.previews.server import PreviewServer, TenantOf, no_tenant
from sandbox_server.sessions.preview_address import PreviewAddress
from sandbox_server.sessions.previews import SessionPreviews
from sandbox_server.settings import Settings

log = structlog.get_logger()

_LOOPBACK = "127.0.0.1"
_IN_PROCESS = PreviewLimits(connections=200, per_visitor=200)
"""Of a program that needs its open files for itself, often 1,024. All visitors are on loopback."""


class PreviewedTenants(Protocol):
    """Whose sandboxes are shown."""

    def of(self, tenant: str) -> Sandboxes: ...

    async def previews_of(self, session_id: str) -> SessionPreviews | None: ...


class PreviewPort:
    """The listener of a server's previews, and where they are from outside; or why there are none.
    Close it, unless a PreviewServer has taken the listener."""

    def __init__(
        self,
        listener: socket.socket | None,
        address: PreviewAddress | None,
        why_not: str = "",
        *,
        behind_proxy: bool = False,
    ) -> None:
        self.listener = listener
        self.address = address
        self.why_not = why_not
        self.behind_proxy = behind_proxy

    def __str__(self) -> str:
        return f"none: {self.why_not}" if self.why_not else str(self.address)

    async def site(self) -> PreviewAddress:
        """Raises RuntimeUnavailable."""
        if self.address is None:
            raise RuntimeUnavailable(f"this server has no previews: {self.why_not}")
        return self.address

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def bind_previews(settings: Settings, api_port: int) -> PreviewPort:
    """Take the port. If that cannot be, the server goes on without previews. api_port: where the
    API listens."""
    if not settings.previews:
        return PreviewPort(None, None, "SANDBOX_PREVIEWS is off")
    port = settings.previews_port(api_port)
    try:
        listener = bound(settings.host, port)
    except RuntimeUnavailable:
        why = f"port {port} is taken; choose another with SANDBOX_PREVIEW_PORT"
        log.warning("previews.off", why=why)
        return PreviewPort(None, None, why)
    url = settings.preview_url or f"http://localhost:{listener.getsockname()[1]}"
    behind_proxy = bool(settings.preview_url)
    return PreviewPort(listener, PreviewAddress.parse(url), behind_proxy=behind_proxy)


@contextlib.asynccontextmanager
async def serving_previews(
    tenants: PreviewedTenants, port: PreviewPort, tenant_of: TenantOf = no_tenant
) -> AsyncIterator[None]:
    """Serve them, where there is a port."""
    if port.listener is None or port.address is None:
        yield
        return
    async with PreviewServer(
        tenants.of,
        tenants.previews_of,
        port.address,
        port.listener,
        tenant_of=tenant_of,
        behind_proxy=port.behind_proxy,
    ):
        log.info("previews.listening", at=str(port.address))
        yield


class PreviewsOnDemand:
    """Those of a program that makes its own sandboxes: it listens from the first one on, at a free
    port of loopback."""

    def __init__(self) -> None:
        self._tenants: PreviewedTenants | None = None
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._address: PreviewAddress | None = None

    @contextlib.asynccontextmanager
    async def of(self, tenants: PreviewedTenants) -> AsyncIterator[None]:
        """For previews of these."""
        self._tenants = tenants
        async with self._stack:
            yield

    async def site(self) -> PreviewAddress:
        """Raises RuntimeUnavailable."""
        async with self._opening:
            if self._address is None:
                assert self._tenants is not None
                listener = bound(_LOOPBACK, 0)
                number = listener.getsockname()[1]
                address = PreviewAddress(scheme="http", domain="localhost", port=number)
                await self._stack.enter_async_context(
                    PreviewServer(
                        self._tenants.of,
                        self._tenants.previews_of,
                        address,
                        listener,
                        limits=_IN_PROCESS,
                    )
                )
                self._address = address
        return self._address
