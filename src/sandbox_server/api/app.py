"""The HTTP app over any `Tenants`: those of a worker, a coordinator or a standalone server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.operations import OPERATIONS
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.errors import install_error_handlers
from sandbox_server.api.execute import execute_route
from sandbox_server.api.files import UPLOAD, download_route, upload_route
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.middleware import BodyLimit, RequestLog
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
from sandbox_server.api.route import PublicRoute, Served

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    tenants: Tenants,
    *,
    keys: ApiKeys | None = None,
    limits: ApiLimits = ApiLimits(),  # noqa: B008 - frozen
    hosts: AllowedHosts | None = None,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """Without keys, all callers are the same tenant, and web pages of other sites are refused;
    hosts: the Host headers to accept then."""
    app = DocumentedApp(
        title=TITLE,
        version=app_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    keys = keys or ApiKeys([])
    routes = _routes(Served(tenants, keys, limits))
    app.router.routes.extend(routes)
    install_docs(app)
    install_error_handlers(app)
    app.add_middleware(ByPath, routes=routes)
    app.add_middleware(BodyLimit, limits=limits, uploads=frozenset({UPLOAD}))
    if not keys.required:
        app.add_middleware(OriginGuard, hosts=hosts or AllowedHosts())
    app.add_middleware(RequestLog)
    return app


class ByPath:
    """Looks a route up by its method and path; FastAPI's own way to a route takes 0.1 ms longer.
    What is not found there (wrong methods, /docs, a path with a prefix) goes that way."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[PublicRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route for route in routes for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope.get("method", ""), scope.get("path", "")))
        await (route.app if route else self._app)(scope, receive, send)


def _routes(served: Served) -> list[PublicRoute]:
    """In the order of the wire contract. CHECK has no route of its own: /execute serves it."""
    bytes_of_files = [upload_route(served), download_route(served)]
    routes: list[PublicRoute] = []
    for operation in OPERATIONS:
        if operation is op.EXECUTE:
            routes += [execute_route(served), *bytes_of_files]
        elif operation is not op.CHECK:
            routes.append(operation_route(operation, served))
    return routes
