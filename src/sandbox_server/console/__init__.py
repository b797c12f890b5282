"""The console in the browser at `/console`: its files, and the live list of sessions."""

from __future__ import annotations

from contextlib import AsyncExitStack

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from sandbox_server.api.route import Asked, KeyedRoute, Served
from sandbox_server.api.sse import EVENT_STREAM, HEADERS, HoldingResponse
from sandbox_server.console.pages import CONSOLE, page_routes
from sandbox_server.console.watch import SessionWatches

__all__ = ["install_console"]


def install_console(app: FastAPI, served: Served) -> None:
    watches = SessionWatches(served.tenants)
    app.state.at_stop.append(watches.end)
    app.router.routes.extend([_sessions_route(served, watches), *page_routes()])


def _sessions_route(served: Served, watches: SessionWatches) -> KeyedRoute:
    """GET /console/sessions: the live sessions of whoever asks, and then what changes of them."""

    async def sessions(asked: Asked) -> Response:
        frames = watches.frames(asked.caller.tenant, keep_alive_s=asked.limits.keep_alive_s)
        held = AsyncExitStack()
        held.push_async_callback(frames.aclose)
        return HoldingResponse(frames, held=held, headers=HEADERS, media_type=EVENT_STREAM)

    return KeyedRoute(
        f"{CONSOLE}/sessions",
        sessions,
        served=served,
        scope="read",
        described=_described,
        include_in_schema=False,
        methods=["GET"],
    )


async def _described(_http: Request) -> None:
    """The page alone reads it: what it sends may change with any version."""
