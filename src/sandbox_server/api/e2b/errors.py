"""Our errors in the words of e2b's SDK, by which it chooses the class of its exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.api.errors import ErrorResponse, error_response


class NotSupported(SandboxError):
    """A part of e2b's API that this server does not have."""

    code = "not_supported"
    status = 501


class AlreadyExists(SandboxError):
    """What was to be made is there."""

    code = "already_exists"
    status = 409


class EventsMissing(SandboxError):
    """More has changed in a watched folder than is kept."""

    code = "events_missing"


class DeadlineExceeded(SandboxError):
    """The time that the SDK gave for a call is over."""

    code = "deadline_exceeded"
    status = 408


@dataclass(frozen=True)
class Told:
    """What the SDK is told: an HTTP status, and a code of the Connect protocol."""

    status: int
    code: str


_GONE = Told(502, "unavailable")
_NOT_FOUND = "The sandbox was not found: it has ended, or never was"
"""The SDK looks for the first words."""
_CUT = "the connection to the sandbox ended before the stream completed"
"""For a stream that had begun. Without the words above: the SDK then asks whether the sandbox is
still there, and says that it was killed meanwhile."""
_TOLD: tuple[tuple[type[SandboxError], Told], ...] = (
    (errors.SessionNotFound, _GONE),
    (errors.SessionLost, _GONE),
    (errors.InvalidRequest, Told(400, "invalid_argument")),
    (errors.FileTooLarge, Told(413, "invalid_argument")),
    (errors.Unauthorized, Told(401, "unauthenticated")),
    (errors.Forbidden, Told(403, "permission_denied")),
    (errors.NotFound, Told(404, "not_found")),
    (AlreadyExists, Told(409, "already_exists")),
    (errors.Conflict, Told(409, "aborted")),
    (errors.StdinClosed, Told(400, "failed_precondition")),
    (errors.DiskFull, Told(507, "failed_precondition")),
    (DeadlineExceeded, Told(408, "deadline_exceeded")),
    (errors.RequestTimeout, Told(408, "deadline_exceeded")),
    (errors.RateLimited, Told(429, "resource_exhausted")),
    (errors.Unavailable, Told(503, "unavailable")),
    (EventsMissing, Told(500, "data_loss")),
    (NotSupported, Told(501, "unimplemented")),
)
"""The first that fits."""
_CONTROL = {errors.InvalidRequest: 400, errors.SessionLost: 404}
"""Statuses of control routes that are not the error's own."""


def told(error: SandboxError) -> Told:
    for kind, found in _TOLD:
        if isinstance(error, kind):
            return found
    return Told(error.status, "internal")


def control_error(error: SandboxError, request_id: str) -> Response:
    """`{code, message}`, with a number: the form of e2b's API."""
    status = next((s for kind, s in _CONTROL.items() if isinstance(error, kind)), error.status)
    return _response(error, request_id, status, {"code": status, "message": error.message})


def box_error(error: SandboxError, request_id: str) -> Response:
    """`{code, message}`, with a word: the form of calls to a sandbox. For one that is gone with a
    number and the words by which the SDK knows it."""
    found = told(error)
    if found is _GONE:
        body: dict[str, Any] = {"code": 502, "message": _NOT_FOUND}
    else:
        body = {"code": found.code, "message": error.message}
    return _response(error, request_id, found.status, body)


def file_error(error: SandboxError, request_id: str) -> Response:
    """`{code, message}`, with a number: the form of /files."""
    found = told(error)
    message = _NOT_FOUND if found is _GONE else error.message
    return _response(error, request_id, found.status, {"code": found.status, "message": message})


def stream_error(error: SandboxError) -> dict[str, str]:
    """The error that ends a stream."""
    found = told(error)
    return {"code": found.code, "message": _CUT if found is _GONE else error.message}


def is_for_http(error: SandboxError) -> bool:
    """Whether a stream fails with an HTTP status instead of an error in its last message."""
    return told(error) is _GONE or isinstance(error, errors.Unauthorized)


def _response(
    error: SandboxError, request_id: str, status: int, body: dict[str, Any]
) -> ErrorResponse:
    ours = error_response(error, request_id).headers
    kept = {name: ours[name] for name in ("retry-after", "ratelimit") if name in ours}
    return ErrorResponse(error, body, status_code=status, headers=kept)
