"""How the unexpected is logged: enough to find it, and nothing of what callers sent."""

from __future__ import annotations

import traceback

import structlog
from fastapi.exceptions import ResponseValidationError
from pydantic import ValidationError

from sandbox_sdk.protocol.errors import SandboxError

MAX_MESSAGE = 200

log = structlog.get_logger(__name__)


def log_failure(error: Exception, *, request_id: str) -> None:
    """One line. Not as exc_info: some renderers print the locals of every frame, commands too."""
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
