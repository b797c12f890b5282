"""The eight endpoints, in the order of the wire contract."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    THREAD_ID,
    ExecuteResult,
    Health,
    ListResult,
    Session,
    Verdict,
)
from sandbox_server.api import commands, examples, files, health, sessions
from sandbox_server.api.auth import KeyedRoute
from sandbox_server.api.docs import TAG, answer, error_answers
from sandbox_server.api.sse import EVENT_STREAM

UPLOAD = "/upload_file"
JSON_CALLS = frozenset(
    {"/create_session", "/execute", "/cleanup", "/command/signal", "/command/stdin"}
)
"""All that take a body of JSON."""

ALWAYS = (
    errors.InvalidRequest,
    errors.InvalidThreadId,
    errors.Unauthorized,
    errors.Forbidden,
    errors.RateLimited,
    errors.RuntimeUnavailable,
    errors.Internal,
)
WITH_BODY = (errors.RequestTimeout, errors.FileTooLarge)
OF_SESSION = (errors.SessionNotFound, errors.SessionLost)
OF_FILE = (errors.InvalidPath, errors.FileMissing)

UPLOAD_FORM: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "thread_id": {
                        "type": "string",
                        "pattern": THREAD_ID,
                        "examples": ["conv-42"],
                    },
                    "session_id": {"type": "string", "maxLength": 128},
                    "path": {"type": "string", "examples": ["script.py"]},
                    "file": {
                        "type": "string",
                        "format": "binary",
                        "description": "Comes last: what is behind it is refused.",
                    },
                },
            }
        }
    },
}
DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes; the ETag is the file's sha256 where it is known.",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/x-tar": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    304: {"description": "The file is still the one named in If-None-Match."},
}


def eight() -> APIRouter:
    """A new router with all of them."""
    router = APIRouter(tags=[TAG])
    keyed = keyed_router()
    _create_session(keyed)
    _execute(keyed)
    _upload_file(keyed)
    _download_file(keyed)
    _list_files(keyed)
    _session(keyed)
    _cleanup(keyed)
    router.include_router(keyed)
    _health(router)
    return router


def keyed_router() -> APIRouter:
    """A new router whose routes need a key."""
    return APIRouter(route_class=KeyedRoute)


def _create_session(router: APIRouter) -> None:
    router.add_api_route(
        "/create_session",
        sessions.create_session,
        methods=["POST"],
        status_code=201,
        summary="Make a session, or find the live one",
        operation_id="create_session",
        responses={
            201: answer("A new session.", examples.SESSION),
            200: {
                "model": Session,
                **answer("The thread was live.", {**examples.SESSION, "status": "existing"}),
            },
            **error_answers(*ALWAYS, *WITH_BODY, errors.Capacity),
        },
    )


def _execute(router: APIRouter) -> None:
    streamed = answer("", examples.EVENTS, media_type=EVENT_STREAM)["content"]
    plain = answer("", examples.EXECUTE_RESULT)["content"]
    router.add_api_route(
        "/execute",
        commands.execute,
        methods=["POST"],
        response_model=ExecuteResult | Verdict,
        summary="Run a command",
        operation_id="execute",
        responses={
            200: {
                "description": "How it ended, its events, or the verdict.",
                "content": {**plain, **streamed},
            },
            **error_answers(
                *ALWAYS,
                *WITH_BODY,
                *OF_SESSION,
                errors.CommandRejected,
                errors.IdempotencyMismatch,
                errors.InvalidPath,
                errors.Capacity,
            ),
        },
    )


def _upload_file(router: APIRouter) -> None:
    router.add_api_route(
        UPLOAD,
        files.upload_file,
        methods=["POST"],
        summary="Store a file",
        operation_id="upload_file",
        openapi_extra={"requestBody": UPLOAD_FORM},
        responses={
            200: answer("Stored.", examples.UPLOAD_RESULT),
            **error_answers(
                *ALWAYS,
                *WITH_BODY,
                *OF_SESSION,
                errors.InvalidPath,
                errors.DiskFull,
                errors.Capacity,
            ),
        },
    )


def _download_file(router: APIRouter) -> None:
    router.add_api_route(
        "/download_file",
        files.download_file,
        methods=["GET"],
        response_model=None,
        response_class=StreamingResponse,
        summary="Read a file, or a folder as a tar",
        operation_id="download_file",
        responses={
            **DOWNLOAD,
            **error_answers(*ALWAYS, *OF_SESSION, *OF_FILE, errors.FileTooLarge),
        },
    )


def _list_files(router: APIRouter) -> None:
    router.add_api_route(
        "/list_files",
        files.list_files,
        methods=["GET"],
        response_model=ListResult,
        summary="See what is in a folder",
        operation_id="list_files",
        responses={
            200: answer("The entries.", examples.LIST_RESULT),
            **error_answers(*ALWAYS, *OF_SESSION, *OF_FILE, errors.Capacity),
        },
    )


def _session(router: APIRouter) -> None:
    router.add_api_route(
        "/session",
        sessions.session,
        methods=["GET"],
        summary="See how a session is doing",
        operation_id="session",
        responses={
            200: answer("The session.", examples.SESSION_INFO),
            **error_answers(*ALWAYS, *OF_SESSION),
        },
    )


def _cleanup(router: APIRouter) -> None:
    router.add_api_route(
        "/cleanup",
        sessions.cleanup,
        methods=["POST"],
        summary="End a session",
        operation_id="cleanup",
        responses={
            200: answer("It is gone.", examples.CLEANUP_RESULT),
            **error_answers(*ALWAYS, *WITH_BODY, errors.SessionNotFound),
        },
    )


def _health(router: APIRouter) -> None:
    router.add_api_route(
        "/health",
        health.health,
        methods=["GET"],
        summary="See how the server is doing",
        operation_id="health",
        responses={
            200: answer("Healthy, or degraded.", examples.HEALTH),
            503: {
                "model": Health,
                **answer("Unhealthy.", {**examples.HEALTH, "status": "unhealthy"}),
            },
            **error_answers(errors.Forbidden),
        },
    )
