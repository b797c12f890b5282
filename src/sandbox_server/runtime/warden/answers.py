"""What a warden answers, checked: every field typed and bounded before anyone relies on it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from sandbox_sdk.protocol import errors
from sandbox_warden import frames

Short = Annotated[str, StringConstraints(max_length=200)]
Ident = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
"""Goes into lines of logs and of streams of events."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""Goes into a header."""
PathText = Annotated[str, StringConstraints(max_length=8192)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
StreamName = Literal["stdout", "stderr"]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class CommandStanding(_Answer):
    """How a command stands; exit_code is None while it runs."""

    command_id: Ident
    exit_code: ExitCode | None
    signal: Short | None
    reason: Short | None
    timed_out: bool
    duration_ms: Annotated[float, Field(ge=0)]
    output_bytes: Count
    cwd: PathText
    state_saved: bool
    """False where the shell could not hand on its state (killed, exec, too large): the state from
    before the command is in force."""


class CommandExit(CommandStanding):
    """How a command ended."""

    exit_code: ExitCode


class CommandStarted(_Answer):
    command_id: Ident
    stdin_received: Count


class CommandSummary(_Answer):
    command_id: Ident
    idempotency_key: Short | None
    running: bool
    exit_code: ExitCode | None
    age_s: float
    output_bytes: Count
    late_bytes: Count


class BoxAbout(_Answer):
    version: int
    """Of the protocol, as both ends speak it."""
    build: Short = ""
    """Which warden it is, by zipapp.warden_version() of the server that made the box. The first
    ones did not tell."""
    box: Short
    boot: Short
    epoch: Count
    uptime_s: float
    idle_s: Annotated[float, Field(ge=0)]
    ran: Count
    cwd: PathText
    state: dict[str, Any]


class BoxState(BoxAbout):
    commands: list[CommandSummary]
    commands_truncated: bool = False
    """Whether more are remembered than are told."""


class OutputGap(_Answer):
    start: Count
    end: Count


class StdinReceived(_Answer):
    received: Count


class FileEntry(_Answer):
    name: PathText
    path: PathText
    type: Literal["file", "directory", "symlink", "other"]
    size: Count
    mode: Short
    modified_at: float


class ListEnd(_Answer):
    truncated: bool


class Uploaded(_Answer):
    path: PathText
    size: Count


class DownloadAbout(_Answer):
    path: PathText
    type: Literal["file", "directory"]
    size: Count | None
    modified_at: float
    mode: Short
    sha256: Sha256 | None


class Usage(_Answer):
    cpu_s: Annotated[float, Field(ge=0)]
    memory_bytes: Count | None
    disk_bytes: Count | None
    pids: Count


@dataclass(frozen=True)
class Listing:
    entries: list[FileEntry]
    truncated: bool


class Fenced(errors.RuntimeUnavailable):
    """Another owner with a higher epoch has taken this box over."""


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
