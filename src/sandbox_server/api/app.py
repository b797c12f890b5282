"""The HTTP app over any `Tenants`: those of a worker, a coordinator or a standalone server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.operations import OPERATIONS, Operation
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server.access.limited import Admission
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.connect import connect
from sandbox_server.api.e2b import STREAMS, UPLOADS, E2bDoor, e2b_routes
from sandbox_server.api.errors import install_error_handlers
from sandbox_server.api.events import Ending, events_route
from sandbox_server.api.execute import code_route, execute_route
from sandbox_server.api.files import UPLOAD, artifact_route, download_route, upload_route
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.metrics import metrics_route
from sandbox_server.api.middleware import ROUTE, BodyLimit, RequestLog
from sandbox_server.api.multiplexed import multiplexed
from sandbox_server.api.openapi import (
    DESCRIPTION,
    TAGS,
    TITLE,
    DocumentedApp,
    app_version,
    install_docs,
)
from sandbox_server.api.operations import operation_route
from sandbox_server.api.origin import AllowedHosts, OriginGuard
from sandbox_server.api.platform import FILES, platform_routes
from sandbox_server.api.route import PublicRoute, Served
from sandbox_server.api.terminal import terminal
from sandbox_server.api.websockets import no_socket_route, socket_route
from sandbox_server.metrics.recorder import NO_METRICS, Metrics

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # Earlier versions have none, and no spans.

    from sandbox_server.metrics.exposition import Exposition

NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""In a program with traces, FastAPI's spans would have paths and queries as callers send them, and
its logs what is invalid in a body. Ours are in RequestLog."""
_SOCKET = "WEBSOCKET"
"""In the place of a method, which a WebSocket has none of."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    tenants: Tenants,
    *,
    keys: ApiKeys | None = None,
    limits: ApiLimits = ApiLimits(),  # noqa: B008 - frozen
    hosts: AllowedHosts | None = None,
    lifespan: Lifespan | None = None,
    admission: Admission | None = None,
    metrics: Metrics = NO_METRICS,
    told: Exposition | None = None,
    e2b: E2bDoor | None = None,
) -> FastAPI:
    """Without keys, all callers are the same tenant, and web pages of other sites are refused;
    hosts: the Host headers to accept then. admission: of callers that have limits. metrics: of its
    requests. told: what GET /metrics answers; None for no such route. e2b: for the routes of
    e2b's API; None for none."""
    app = App(
        title=TITLE,
        version=app_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        telemetry=NO_TELEMETRY,
    )
    app.state.at_stop = []
    keys = keys or ApiKeys([])
    served = Served(tenants, keys, limits, admission)
    ending = Ending()
    app.state.at_stop.append(ending.set)
    routes = _routes(served, ending)
    if e2b is not None:
        routes += e2b_routes(served, e2b)
    app.router.routes.extend(routes)
    sockets = [
        socket_route(path, handler, served=served, hosts=hosts or AllowedHosts())
        for path, handler in (("/terminal", terminal), ("/connect", connect), ("/ws", multiplexed))
    ]
    app.router.routes += [*sockets, no_socket_route()]
    if told is not None:
        app.router.routes.append(metrics_route(told, keys))
    install_docs(app)
    install_error_handlers(app)
    guards = [Middleware(RequestLog, metrics=metrics)]
    guards.append(Middleware(OriginGuard, hosts=hosts or AllowedHosts(), off=lambda: keys.required))
    uploads, or_json = frozenset({UPLOAD, *UPLOADS}), frozenset(FILES)
    guards.append(
        Middleware(BodyLimit, limits=limits, uploads=uploads, or_json=or_json, streams=STREAMS)
    )
    app.user_middleware.extend(guards)
    app.direct = {
        **_direct(routes, guards),
        **{(_SOCKET, route.path): route.app for route in sockets},
    }
    return app


class App(DocumentedApp):
    """Looks a route up by its method and path, and calls it with nothing of FastAPI in between.
    What is not found there (wrong methods, /docs, a path with a prefix) goes FastAPI's way."""

    direct: Mapping[tuple[str, str], ASGIApp] = {}

    @functools.cached_property
    def _fixed(self) -> frozenset[str]:
        """Paths of routes without parameters: FastAPI does not tell which of them was called."""
        paths = (getattr(route, "path", "{") for route in self.routes)
        return frozenset(path for path in paths if "{" not in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        route = self.direct.get((scope.get("method", _SOCKET), path))
        if route is None:
            if path in self._fixed:
                scope[ROUTE] = path
            await super().__call__(scope, receive, send)
            return
        scope[ROUTE] = path
        await route(scope, receive, send)


def _direct(
    routes: Iterable[PublicRoute], guards: Sequence[Middleware]
) -> dict[tuple[str, str], ASGIApp]:
    """By method and path: each route behind the guards."""
    found: dict[tuple[str, str], ASGIApp] = {}
    for route in routes:
        app: ASGIApp = route.app
        for guard in reversed(guards):
            app = guard.cls(app, *guard.args, **guard.kwargs)
        found.update({(method, route.path): app for method in route.methods or ()})
    return found


def _routes(served: Served, ending: Ending) -> list[PublicRoute]:
    """In the order of the wire contract. CHECK has no route of its own: /execute serves it."""
    own: dict[Operation[Any, Any], list[PublicRoute]] = {
        op.EXECUTE: [execute_route(served), upload_route(served), download_route(served)],
        op.CHECK: [],
        op.RUN_CODE: [code_route(served)],
        op.EVENTS: [events_route(served, ending)],
        op.DELETE_ARTIFACT: [operation_route(op.DELETE_ARTIFACT, served), artifact_route(served)],
    }
    routes: list[PublicRoute] = []
    for operation in OPERATIONS:
        routes += own[operation] if operation in own else [operation_route(operation, served)]
    return [*routes, *platform_routes(served)]
