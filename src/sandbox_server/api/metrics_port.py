"""The metrics at a port of their own, without a key: only Prometheus should be able to reach it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette

from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.server import NestedServer, bound
from sandbox_server.settings import Settings

if TYPE_CHECKING:
    from sandbox_server.metrics.exposition import Exposition

log = structlog.get_logger(__name__)

_CONNECTIONS = 32
"""At a time: scrapers are few."""


def bind_metrics(
    settings: Settings,
) -> contextlib.AbstractContextManager[socket.socket | None]:
    """The listener, or None where the settings want none. Raises RuntimeUnavailable."""
    if settings.metrics_port is None or not settings.metrics:
        return contextlib.nullcontext()
    return bound(settings.host, settings.metrics_port, option="SANDBOX_METRICS_PORT")


@contextlib.asynccontextmanager
async def serving_metrics(
    told: Exposition | None, listener: socket.socket | None
) -> AsyncIterator[None]:
    """Serve them, where there is a port for it."""
    if told is None or listener is None:
        yield
        return
    from sandbox_server.api.metrics import metrics_route  # Slow to import.

    config = uvicorn.Config(
        Starlette(routes=[metrics_route(told, ApiKeys([]))]),
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = NestedServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    log.info("metrics.listening", port=listener.getsockname()[1])
    try:
        yield
    finally:
        server.should_exit = True
        await serving
