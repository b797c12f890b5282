"""Error responses in the form of the wire contract, and the log of unexpected errors, which
contains nothing that callers sent."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import ResponseValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from sandbox_sdk.protocol.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestTimeout,
    SandboxError,
    Unauthorized,
    Unavailable,
)
from sandbox_server.api.spans import note_error

log = structlog.get_logger(__name__)

MAX_MESSAGE = 200


class ClientGone(SandboxError):
    """The client disconnected before its request was complete. Visible only in the log."""

    code = "client_gone"
    status = 499


class ErrorResponse(JSONResponse):
    def __init__(self, error: SandboxError, body: Any, **options: Any) -> None:
        self._error = error
        super().__init__(body, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_error(scope, self._error)
        await super().__call__(scope, receive, send)

    def render(self, content: Any) -> bytes:
        # ASCII: a lone surrogate from the request could not be encoded as UTF-8.
        return json.dumps(content, default=str).encode("ascii")


def error_body(error: SandboxError, request_id: str) -> dict[str, Any]:
    """The fields of `ErrorBody`; `details` only if there are any."""
    details = {"details": error.details} if error.details else {}
    return {
        "code": error.code,
        "message": error.message,
        **details,
        "request_id": request_id,
    }


def error_response(
    error: SandboxError, request_id: str, headers: Mapping[str, str] | None = None
) -> ErrorResponse:
    return ErrorResponse(
        error,
        {"error": error_body(error, request_id)},
        status_code=error.status,
        headers={**(headers or {}), **_headers(error)},
    )


def install_error_handlers(app: FastAPI) -> None:
    """For errors outside of our routes: mounted apps, and unknown paths or methods."""
    app.add_exception_handler(SandboxError, _sandbox_error)
    app.add_exception_handler(HTTPException, _http_error)


async def _sandbox_error(request: Request, error: Exception) -> ErrorResponse:
    assert isinstance(error, SandboxError)
    return error_response(error, request.state.request_id)


async def _http_error(request: Request, error: Exception) -> ErrorResponse:
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {clipped(request.url.path)}"
    headers = error.headers
    if error.status_code == 405:
        headers = {"Allow": ", ".join(sorted(_methods(request)))}
    return error_response(_translated(error, asked), request.state.request_id, headers)


def _methods(request: Request) -> set[str]:
    """Those of all routes with this path; the framework knows those of the first."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE:
            found |= route.methods or set()
    return found


def _translated(error: HTTPException, asked: str) -> SandboxError:
    """Map the framework's errors: no such route or method, or an unreadable body. asked: method and
    path."""
    cause = error.__cause__
    if isinstance(cause, SandboxError):
        return cause
    if isinstance(cause, ClientDisconnect):
        return ClientGone("the client disconnected")
    if error.status_code == 404:
        return no_route(asked)
    if error.status_code == 405:
        return MethodNotAllowed(
            f"{asked} takes another method: see the Allow header of this answer, or /docs"
        )
    return InvalidRequest("the body cannot be read; send JSON in UTF-8, not deeply nested")


def no_route(asked: str) -> NotFound:
    return NotFound(f"there is no route for {asked}; /docs lists all routes")


def _headers(error: SandboxError) -> dict[str, str]:
    if isinstance(error, Unavailable):
        seconds = max(1, math.ceil(float(error.details.get("retry_after_s") or 1)))
        headers = {"Retry-After": str(seconds)}
        if limit := error.details.get("limit"):
            headers["RateLimit"] = f'"{limit}";r=0;t={seconds}'
        return headers
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="sandboxes"'}
    return {"Connection": "close"} if isinstance(error, RequestTimeout) else {}


def clipped(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"


def log_failure(error: Exception, *, request_id: str) -> None:
    """One line. Not exc_info: some renderers print locals of frames, which contain commands."""
    cause = error.__cause__
    if isinstance(cause, SandboxError):
        log.warning("request.cut_short", request_id=request_id, code=cause.code)
        return
    log.error(
        "request.failed",
        request_id=request_id,
        error=_named(error),
        cause=_named(cause) if cause else None,
        traceback="".join(traceback.format_tb((cause or error).__traceback__)),
    )


def _named(error: BaseException) -> str:
    quotes_its_input = isinstance(error, (ValidationError, ResponseValidationError))
    return type(error).__name__ if quotes_its_input else repr(error)[:MAX_MESSAGE]
