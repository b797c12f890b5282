"""What a warden answers, checked: every field typed and bounded before anyone relies on it."""

from __future__ import annotations

import json
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
from sandbox_warden.frames import FrameError

Short = Annotated[str, StringConstraints(max_length=200)]
PathText = Annotated[str, StringConstraints(max_length=8192)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
StreamName = Literal["stdout", "stderr"]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class CommandStanding(_Answer):
    """How a command stands; exit_code is None while it runs."""

    command_id: Short
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
    command_id: Short
    stdin_received: Count


class CommandSummary(_Answer):
    command_id: Short
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


class StdinReceived(_Answer):
    received: Count


class FileEntry(_Answer):
    name: PathText
    path: PathText
    type: Literal["file", "directory", "symlink", "other"]
    size: Count
    mode: Short
    modified_at: float


class Uploaded(_Answer):
    path: PathText
    size: Count


class DownloadAbout(_Answer):
    path: PathText
    type: Literal["file", "directory"]
    size: Count | None
    modified_at: float
    mode: Short
    sha256: Short | None


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
    "changed": errors.FileMissing,
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


def reply_body(kind: int, payload: bytes) -> dict[str, Any]:
    if kind != frames.REPLY:
        raise_answer(kind, payload)
    try:
        return frames.decode_json(payload)
    except FrameError as exc:
        raise errors.RuntimeUnavailable("the warden sent nonsense") from exc


def raise_answer(kind: int, payload: bytes) -> NoReturn:
    if kind != frames.ERROR:
        raise errors.RuntimeUnavailable("the warden sent nonsense")
    try:
        body = frames.decode_json(payload)
    except FrameError as exc:
        raise errors.RuntimeUnavailable("the warden sent nonsense") from exc
    error = _ERRORS.get(str(body.get("code")), errors.Internal)
    raise error(str(body.get("message"))[:1000])


def checked(model: type[_Model], body: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        raise errors.RuntimeUnavailable("the warden sent nonsense") from exc


def checked_entries(batch: bytes) -> list[FileEntry]:
    try:
        return _ENTRIES.validate_python([readable(item) for item in json.loads(batch)])
    except (ValueError, TypeError, AttributeError) as exc:
        raise errors.RuntimeUnavailable("the warden sent nonsense") from exc


def readable(entry: dict[str, Any]) -> dict[str, Any]:
    """Names that are not UTF-8 arrive as lone surrogates, which nobody further on could encode."""
    return {
        key: value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if isinstance(value, str)
        else value
        for key, value in entry.items()
    }
