"""The API of e2b at `/e2b`: programs that use its SDK keep their code, and set two addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from sandbox_sdk.protocol.errors import SessionNotFound
from sandbox_server.api.e2b.control import Control
from sandbox_server.api.e2b.errors import NotSupported
from sandbox_server.api.e2b.filesystem import filesystem_routes
from sandbox_server.api.e2b.interpreter import interpreter_routes
from sandbox_server.api.e2b.processes import STREAM_INPUT, process_routes
from sandbox_server.api.e2b.routes import PREFIX, BoxRoute, ControlRoute, Door, InBox
from sandbox_server.api.e2b.templates import template_routes
from sandbox_server.api.e2b.tokens import AccessTokens, SignedUrls
from sandbox_server.api.e2b.transfers import UPLOADS, file_routes
from sandbox_server.api.route import Asked, PublicRoute, Served
from sandbox_server.sessions.preview_address import PreviewSite

__all__ = ["PREFIX", "STREAMS", "UPLOADS", "E2bDoor", "e2b_routes"]

STREAMS = frozenset({STREAM_INPUT})
"""Paths whose bodies have no end that is known before."""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class E2bDoor:
    """What a server needs for these routes. secret: for the access tokens, the same in all of its
    processes and coordinators."""

    secret: Callable[[], bytes]
    previews_at: PreviewSite | None = None


def e2b_routes(served: Served, opened: E2bDoor) -> list[PublicRoute]:
    tokens = AccessTokens(opened.secret)
    door = Door(served, tokens, SignedUrls(served, tokens), opened.previews_at)
    return [
        *Control(door).routes(),
        *template_routes(door),
        BoxRoute(door, "GET", "/health", health),
        *process_routes(door),
        *filesystem_routes(door),
        *file_routes(door),
        *interpreter_routes(door),
        *(ControlRoute(door, each, "/{rest:path}", missing, scope="read") for each in _METHODS),
    ]


async def health(box: InBox) -> Response:
    """Raises SessionNotFound, also for one that is paused."""
    found = await box.sandboxes.session(box.target)
    if found.state == "paused":
        raise SessionNotFound("the sandbox is paused")
    return Response(status_code=204)


async def missing(asked: Asked) -> Response:
    what = f"{asked.http.method} /{asked.http.path_params['rest'][:200]}"
    raise NotSupported(f"this server does not have {what} of e2b's API")
