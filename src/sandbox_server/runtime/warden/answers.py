"""What a warden answers, checked: every field typed and bounded before anyone relies on it."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    TypeAdapter,
    ValidationError,
)

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import Count, Fenced, FileEntry, Ident, Said
from sandbox_warden import frames


class CommandStarted(Said):
    command_id: Ident
    stdin_received: Count


class OutputGap(Said):
    start: Count
    end: Count


class StdinReceived(Said):
    received: Count


_ERRORS: dict[str, type[errors.SandboxError]] = {
    "invalid_path": errors.InvalidPath,
    "not_a_file": errors.InvalidPath,
    "is_directory": errors.InvalidPath,
    "permission_denied": errors.InvalidPath,
    "file_not_found": errors.FileMissing,
    "file_too_large": errors.FileTooLarge,
    "disk_full": errors.DiskFull,
    "changed": errors.RuntimeUnavailable,
    "idempotency_mismatch": errors.IdempotencyMismatch,
    "stdin_closed": errors.StdinClosed,
    "invalid_request": errors.InvalidRequest,
    "command_not_found": errors.NotFound,
    "exhausted": errors.Capacity,
    "fenced": Fenced,
    "version": errors.RuntimeUnavailable,
    "unsupported": errors.InvalidRequest,
}


_Model = TypeVar("_Model", bound=BaseModel)
_ENTRIES = TypeAdapter(list[FileEntry])
_MAY_HAVE_SURROGATES = re.compile(rb"\\u[dD]|\xed")
_SURROGATE = re.compile("[\ud800-\udfff]")


def invalid(what: str) -> errors.RuntimeUnavailable:
    """The error for an answer that is not as it has to be."""
    return errors.RuntimeUnavailable(f"invalid answer from the warden: {what}")


def reply_body(kind: int, payload: bytes) -> dict[str, Any]:
    """What a REPLY says. Raises the error an ERROR tells, and RuntimeUnavailable."""
    if kind != frames.REPLY:
        raise_answer(kind, payload)
    return body_of(payload)


def body_of(payload: bytes) -> dict[str, Any]:
    """Raises RuntimeUnavailable for anything that is not a JSON object."""
    body = _parsed(payload or b"{}")
    if not isinstance(body, dict):
        raise invalid("not a JSON object")
    return body


def raise_answer(kind: int, payload: bytes) -> NoReturn:
    if kind != frames.ERROR:
        raise invalid(f"unexpected frame of kind {kind}")
    body = body_of(payload)
    code, message = body.get("code"), body.get("message")
    error = _ERRORS.get(code, errors.RuntimeUnavailable) if isinstance(code, str) else None
    if error is None or not isinstance(message, str):
        raise invalid("an error without code and message")
    raise error(message[: frames.MESSAGE_LENGTH])


def checked(model: type[_Model], body: dict[str, Any]) -> _Model:
    """Raises RuntimeUnavailable that names the first field that is wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        raise invalid(_first_fault(exc)) from None


def checked_entries(batch: bytes) -> list[FileEntry]:
    """Raises RuntimeUnavailable, also for a batch without entries."""
    try:
        entries = _ENTRIES.validate_python(_parsed(batch))
    except ValidationError as exc:
        raise invalid(_first_fault(exc)) from None
    if not entries:
        raise invalid("a batch without entries")
    return entries


def _parsed(payload: bytes) -> Any:
    hook = _readable if _MAY_HAVE_SURROGATES.search(payload) else None
    try:
        return json.loads(payload, object_hook=hook)
    except (ValueError, RecursionError) as exc:
        raise invalid(f"not JSON: {exc}"[:200]) from None


def _readable(body: dict[str, Any]) -> dict[str, Any]:
    """Names that are not UTF-8 arrive as lone surrogates, which nobody further on could encode."""
    return {
        key: _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
        for key, value in body.items()
    }


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"field {'.'.join(map(str, fault['loc']))[:100]}: {fault['msg'][:200]}"
