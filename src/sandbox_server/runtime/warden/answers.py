"""Parsing of frames from a warden. A box is hostile, so every field is typed and bounded."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import (
    CommandResult,
    Event,
    Fenced,
    Gap,
    Output,
    Started,
    StreamName,
)
from sandbox_warden import frames
from sandbox_warden.frames import Frame, FrameError

_ERRORS: dict[str, type[errors.SandboxError]] = {
    "invalid_path": errors.InvalidPath,
    "not_a_file": errors.InvalidPath,
    "is_directory": errors.InvalidPath,
    "permission_denied": errors.InvalidPath,
    "file_not_found": errors.FileMissing,
    "file_too_large": errors.FileTooLarge,
    "disk_full": errors.DiskFull,
    "changed": errors.RuntimeUnavailable,
    "conflict": errors.Conflict,
    "idempotency_mismatch": errors.IdempotencyMismatch,
    "stdin_closed": errors.StdinClosed,
    "not_listening": errors.NotListening,
    "invalid_request": errors.InvalidRequest,
    "command_not_found": errors.NotFound,
    "watch_not_found": errors.NotFound,
    "exhausted": errors.Capacity,
    "fenced": Fenced,
    "version": errors.RuntimeUnavailable,
    "unsupported": errors.InvalidRequest,
    "no_kernel": errors.KernelMissing,
    "kernel_failed": errors.KernelFailed,
    "context_not_found": errors.ContextNotFound,
    "context_lost": errors.ContextLost,
}
_NAMES = {
    getattr(frames, name): name
    for name in ("DATA", "EOF", "REPLY", "ERROR", "STARTED", "STDOUT", "STDERR", "GAP", "RESULT")
}
_STREAMS: dict[int, StreamName] = {
    frames.STDOUT: "stdout",
    frames.STDERR: "stderr",
    frames.RESULT: "result",
}
_KINDS = {name: kind for kind, name in _STREAMS.items()}
_T = TypeVar("_T")


class _Adapters(dict[Any, TypeAdapter[Any]]):
    """TypeAdapters by type, built on first use."""

    def __missing__(self, expected: Any) -> TypeAdapter[Any]:
        return self.setdefault(expected, TypeAdapter(expected))


_ADAPTERS = _Adapters()
_MAY_HAVE_SURROGATES = re.compile(rb"\\u[dD]|\xed")
_SURROGATE = re.compile("[\ud800-\udfff]")


def invalid(kind: int, what: str) -> errors.RuntimeUnavailable:
    """The error for an invalid frame."""
    name = _NAMES.get(kind, f"kind {kind}")
    return errors.RuntimeUnavailable(f"invalid {name} frame from the warden: {what}")


def checked(expected: type[_T], frame: Frame, *, kind: int = frames.REPLY) -> _T:
    """The payload of a frame of that kind. Raises the error that an ERROR frame carries, and
    RuntimeUnavailable, naming the first invalid field."""
    if frame[0] != kind:
        raise_error(frame, expected=kind)
    return checked_payload(expected, kind, frame[2] or b"{}")


def raise_error(frame: Frame, *, expected: int) -> NoReturn:
    """For a frame of an unexpected kind: raise the error that it carries, or RuntimeUnavailable."""
    kind, _, payload = frame
    if kind != frames.ERROR:
        raise invalid(kind, f"expected {_NAMES[expected]}")
    body = checked_payload(dict[str, Any], kind, payload)
    code, message = body.get("code"), body.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        raise invalid(kind, "field `code` or `message`: not a string")
    raise _ERRORS.get(code, errors.RuntimeUnavailable)(message[: frames.MESSAGE_LENGTH])


def checked_payload(expected: type[_T], kind: int, payload: bytes) -> _T:
    """Raises RuntimeUnavailable."""
    adapter = _ADAPTERS[expected]
    try:
        value: _T
        if _MAY_HAVE_SURROGATES.search(payload):
            value = adapter.validate_python(json.loads(payload, object_hook=_readable))
        else:
            value = adapter.validate_json(payload)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        if fault["type"] == "json_invalid":
            raise invalid(kind, f"not JSON: {fault['msg']}"[:200]) from None
        field = ".".join(map(str, fault["loc"]))[:100]
        where = f"field `{field}`: " if field else ""
        raise invalid(kind, f"{where}{fault['msg'][:200]}") from None
    except (ValueError, RecursionError) as exc:
        raise invalid(kind, f"not JSON: {exc}"[:200]) from None
    return value


def event_of(frame: Frame) -> Event:
    """The event in a frame of a followed command. Raises as `checked` does."""
    kind, _, payload = frame
    if kind in _STREAMS:
        try:
            offset, data = frames.decode_at(payload)
        except FrameError as exc:
            raise invalid(kind, str(exc)) from None
        return Output(_STREAMS[kind], offset, data)
    if kind == frames.STARTED:
        return checked(Started, frame, kind=kind)
    if kind == frames.GAP:
        return checked(Gap, frame, kind=kind)
    return checked(CommandResult, frame)


class EventOrder:
    """Checks the order of one command's events: one start, and output without holes or overlaps."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self._started = False

    def check(self, event: Event) -> None:
        """Raises RuntimeUnavailable."""
        if isinstance(event, Started):
            if self._started:
                raise invalid(frames.STARTED, "a second one for the same command")
            self._started = True
        elif isinstance(event, Output):
            self._move(_KINDS[event.stream], event.offset, event.offset + len(event.data))
        elif isinstance(event, Gap):
            self._move(frames.GAP, event.start, event.end)
        elif event.exit_code is None:
            raise invalid(frames.REPLY, "field `exit_code`: null in the result of a command")

    def reconnected(self) -> None:
        """Expect STARTED again: a warden sends it on every link."""
        self._started = False

    def _move(self, kind: int, start: int, end: int) -> None:
        if start != self.offset or end <= start:
            raise invalid(kind, f"output from {start} to {end}, expected from {self.offset}")
        self.offset = end


def _readable(body: dict[str, Any]) -> dict[str, Any]:
    """Replace lone surrogates (file names that are not UTF-8): they could not be encoded again."""
    return {
        key: _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
        for key, value in body.items()
    }
