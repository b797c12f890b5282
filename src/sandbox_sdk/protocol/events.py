"""The events of a command that is followed while it runs."""

from __future__ import annotations

from typing import Literal

from sandbox_sdk.protocol.models import Model, SessionState


class StartEvent(Model):
    event: Literal["start"] = "start"
    command_id: str
    session_id: str
    generation: int
    session_state: SessionState


class OutputEvent(Model):
    """A piece of output. `offset` counts the bytes of both streams; `next_offset` is where to go on
    after this piece."""

    event: Literal["stdout", "stderr"]
    data: str
    offset: int
    next_offset: int


class GapEvent(Model):
    """Output that is no longer kept: the bytes from offset up to next_offset."""

    event: Literal["gap"] = "gap"
    offset: int
    next_offset: int


class ExitEvent(Model):
    """The whole answer of execute, less the text."""

    event: Literal["exit"] = "exit"
    exit_code: int
    command_id: str
    duration_ms: float
    timed_out: bool
    truncated: bool
    output_bytes: int
    cwd: str
    signal: str | None = None
    reason: str | None = None
    session_id: str
    generation: int
    session_state: SessionState


CommandEvent = StartEvent | OutputEvent | GapEvent | ExitEvent


def event_id(command_id: str, offset: int) -> str:
    """What a client sends as Last-Event-ID to continue after this point."""
    return f"{command_id}:{offset}"


def parse_event_id(text: str) -> tuple[str, int]:
    """The inverse of event_id. Raises ValueError."""
    command_id, _, offset = text.rpartition(":")
    if not command_id:
        raise ValueError(f"event id {text[:200]!r} is not command_id:offset")
    return command_id, int(offset)
