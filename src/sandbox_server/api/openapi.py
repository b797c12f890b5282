"""The OpenAPI document and its pages, which load nothing from other servers."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import ErrorAnswer
from sandbox_server.api.auth import SCHEMES
from sandbox_server.api.route import PublicRoute

TITLE = "Sandboxes"
TAGS = [
    {"name": "sandboxes", "description": "The whole contract: eight operations."},
    {"name": "code", "description": "Code in contexts, on the Jupyter kernels of a sandbox."},
    {"name": "commands", "description": "Commands that were started before."},
    {"name": "sessions", "description": "All sessions at a glance, and how long they last."},
    {"name": "files", "description": "More to do with files."},
    {"name": "registry", "description": "Agents and tools that the operator has declared."},
    {"name": "artifacts", "description": "Files that outlive their session."},
    {"name": "checkpoints", "description": "Copies of a thread, to go back to and to fork."},
    {"name": "volumes", "description": "Folders that outlive sessions."},
    {"name": "previews", "description": "Ports of a sandbox for browsers."},
    {
        "name": "platform",
        "description": "Sessions on a provider, in an environment, and what is stored of them.",
    },
]
DESCRIPTION = """\
Isolated places in which agents run commands and keep files.

A `thread_id` is all a caller needs: name a conversation, run a command, and its sandbox is there.
Every error has the form `{"error": {"code", "message", "details", "request_id"}}`, and its message
says what to do next.
"""
# Relative, so the pages work behind a proxy that serves the app under a prefix.
DOCUMENT = "openapi.json"
ASSETS = "static-docs"
ASSET_PACKAGE = ("fastapi_offline", "static")
REDOC = "redoc.standalone.js"
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; worker-src blob:"
)


def app_version() -> str:
    try:
        return version("agent-sandbox")
    except PackageNotFoundError:
        return "0"


class DocumentedApp(FastAPI):
    """Makes the OpenAPI document of our routes, which FastAPI does not know, and adds the security
    schemes. FastAPI would take those from dependencies of the routes, which would run on every call
    without checking anything."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=[
                    route.documented() if isinstance(route, PublicRoute) else route
                    for route in self.routes
                ],
                tags=self.openapi_tags,
            )
            self.openapi_schema["components"]["securitySchemes"] = SCHEMES
        return self.openapi_schema


class Document:
    """The OpenAPI document of an app. It takes a second to make, so a thread does, once, and
    callers of other routes are served meanwhile."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._making: asyncio.Task[bytes] | None = None

    async def answer(self, _request: Request) -> Response:
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self._make))
        # Whoever does not wait for it takes it from nobody else.
        body = await asyncio.shield(self._making)
        return Response(body, media_type="application/json")

    def _make(self) -> bytes:
        return bytes(JSONResponse(self._app.openapi()).body)


def install_docs(app: FastAPI) -> None:
    """/docs, /redoc and the files they need."""
    app.add_route(f"/{DOCUMENT}", Document(app).answer, include_in_schema=False)
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/docs", swagger, response_class=HTMLResponse)
    router.add_api_route("/redoc", redoc, response_class=HTMLResponse)
    router.add_api_route(f"/{ASSETS}/{REDOC}", redoc_script)
    app.include_router(router)
    app.mount(f"/{ASSETS}", StaticFiles(packages=[ASSET_PACKAGE]))


async def swagger() -> HTMLResponse:
    return _guarded(
        get_swagger_ui_html(
            openapi_url=DOCUMENT,
            title=TITLE,
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
            # By default the page sends the document to a validator on the internet.
            swagger_ui_parameters={"validatorUrl": None},
        )
    )


async def redoc() -> HTMLResponse:
    return _guarded(
        get_redoc_html(
            openapi_url=DOCUMENT,
            title=TITLE,
            redoc_js_url=f"{ASSETS}/{REDOC}",
            redoc_favicon_url=f"{ASSETS}/favicon.png",
            with_google_fonts=False,
        )
    )


async def redoc_script() -> Response:
    return Response(_redoc_script(), media_type="text/javascript")


@cache
def _redoc_script() -> bytes:
    """The script, without the logo that it would load from the internet."""
    package, folder = ASSET_PACKAGE
    script = files(package).joinpath(folder, REDOC).read_bytes()
    return script.replace(b"https://cdn.redoc.ly/redoc/logo-mini.svg", b"data:,")


def answer(
    description: str, example: Any, *, media_type: str = "application/json"
) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"example": example}}}


def error_answers(*errors: type[SandboxError]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these errors: one per status, with an example per code."""
    found: dict[int | str, dict[str, Any]] = {}
    for error in sorted(errors, key=lambda each: (each.status, each.code)):
        entry = found.setdefault(
            error.status,
            {
                "model": ErrorAnswer,
                "description": "",
                "content": {"application/json": {"examples": {}}},
            },
        )
        entry["description"] = " or ".join(filter(None, [entry["description"], f"`{error.code}`"]))
        entry["content"]["application/json"]["examples"][error.code] = {"value": _example(error)}
    return found


def _example(error: type[SandboxError]) -> dict[str, Any]:
    message = (error.__doc__ or error.code.replace("_", " ")).strip().splitlines()[0]
    return {"error": {"code": error.code, "message": message, "request_id": "4f2a9c"}}


def _guarded(page: HTMLResponse) -> HTMLResponse:
    page.headers["Content-Security-Policy"] = POLICY
    return page
