"""The metrics that Prometheus scrapes: GET /metrics, and a port of their own without a key, which
only Prometheus should be able to reach."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.connections import bounded_protocol
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.server import NestedServer, bound
from sandbox_server.settings import Settings

if TYPE_CHECKING:
    from sandbox_server.metrics.exposition import Exposition

log = structlog.get_logger(__name__)

PATH = "/metrics"
_LIMITS = ApiLimits(connections=32, idle_connections=32)
"""Scrapers are few."""


def metrics_route(told: Exposition, keys: ApiKeys) -> Route:
    from sandbox_server.metrics.exposition import TEXT  # Slow to import.

    async def endpoint(request: Request) -> Response:
        keys.caller(request.headers, "metrics")
        return Response(await told(), headers={"content-type": TEXT})

    return Route(PATH, endpoint)


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
    config = uvicorn.Config(
        Starlette(routes=[metrics_route(told, ApiKeys([]))]),
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="off",
        http=cast(type[asyncio.Protocol], bounded_protocol(_LIMITS)),
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
