"""The HTTP app over any `Sandboxes`: a worker's, a coordinator's, or the only one there is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI

from sandbox_sdk.backends.base import Sandboxes
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.docs import (
    DESCRIPTION,
    TAGS,
    TITLE,
    DocumentedApp,
    app_version,
    install_docs,
)
from sandbox_server.api.errors import install_error_handlers
from sandbox_server.api.further import further
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.middleware import BodyLimit, JsonBodies, RequestLog
from sandbox_server.api.origin import AllowedHosts, OriginGuard
from sandbox_server.api.routes import JSON_CALLS, UPLOAD, eight
from sandbox_server.api.shortcut import Shortcut

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    sandboxes: Sandboxes,
    *,
    keys: ApiKeys | None = None,
    limits: ApiLimits = ApiLimits(),  # noqa: B008 - frozen
    hosts: AllowedHosts | None = None,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """A new app. Without keys, every caller is the default tenant, unless it is a web page; hosts
    are the names the server has then."""
    app = DocumentedApp(
        title=TITLE,
        version=app_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.sandboxes = sandboxes
    app.state.keys = keys = keys or ApiKeys([])
    app.state.limits = limits
    app.include_router(eight())
    app.include_router(further())
    install_docs(app)
    install_error_handlers(app)
    app.add_middleware(Shortcut, sandboxes=sandboxes, keys=keys)
    app.add_middleware(JsonBodies, paths=JSON_CALLS)
    app.add_middleware(BodyLimit, limits=limits, uploads=frozenset({UPLOAD}))
    if not keys.required:
        app.add_middleware(OriginGuard, hosts=hosts or AllowedHosts())
    app.add_middleware(RequestLog)
    return app
