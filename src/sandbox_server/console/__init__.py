"""The console in the browser at `/console`: its files, and the live list of sessions."""

from __future__ import annotations

from fastapi import FastAPI

from sandbox_server.api.route import Served
from sandbox_server.console.pages import page_routes
from sandbox_server.console.stream import sessions_route
from sandbox_server.console.watch import SessionWatches

__all__ = ["install_console"]


def install_console(app: FastAPI, served: Served) -> None:
    watches = SessionWatches(served.tenants)
    app.state.at_stop.append(watches.end)
    app.router.routes.extend([sessions_route(served, watches), *page_routes()])
