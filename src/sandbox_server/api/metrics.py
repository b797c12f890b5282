"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox_server.api.auth import ApiKeys
from sandbox_server.metrics.exposition import TEXT, Exposition

PATH = "/metrics"


def require_metrics_key(keys: ApiKeys, headers: Headers) -> None:
    """Whether a caller may read the metrics. Raises Unauthorized, Forbidden."""
    keys.caller(headers, "metrics")


def metrics_route(told: Exposition, keys: ApiKeys) -> Route:
    async def endpoint(request: Request) -> Response:
        require_metrics_key(keys, request.headers)
        return Response(await told(), headers={"content-type": TEXT})

    return Route(PATH, endpoint)
