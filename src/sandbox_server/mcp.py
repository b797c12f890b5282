"""The tools over MCP at `/mcp`, imported on the first call because that takes a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.tasks import stop

if TYPE_CHECKING:
    from sandbox_sdk.integrations.mcp import McpEndpoint

log = structlog.get_logger()


def is_installed() -> bool:
    try:
        return find_spec("mcp") is not None
    except (ImportError, ValueError):
        return False


class Mcp:
    """An ASGI app that works inside its `lifespan`."""

    def __init__(self, caller: Callable[[Headers], tuple[str, str, Sandboxes]]) -> None:
        """caller: the tenant, key and sandboxes of whoever sends a request, by its headers."""
        self._caller = caller
        self._wanted = asyncio.Event()
        self._endpoint: asyncio.Future[McpEndpoint] | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._endpoint = asyncio.get_running_loop().create_future()
        living = asyncio.create_task(self._live(self._endpoint))
        try:
            yield
        finally:
            await stop(living)

    async def _live(self, endpoint: asyncio.Future[McpEndpoint]) -> None:
        """Runs the endpoint from the first call on. One task: a lifespan has to be entered and
        left in the same one."""
        await self._wanted.wait()
        module = await asyncio.to_thread(import_module, "sandbox_sdk.integrations.mcp")
        made: McpEndpoint = module.McpEndpoint(
            lambda headers: module.McpCaller(*self._caller(headers))
        )
        async with made.lifespan(None):
            log.info("mcp.loaded")
            endpoint.set_result(made)
            await asyncio.Event().wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._endpoint is not None, "called outside of its lifespan"
        self._wanted.set()
        await (await asyncio.shield(self._endpoint))(scope, receive, send)
