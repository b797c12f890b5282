"""The events of a command that is followed while it runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models import Model, SessionState
from sandbox_sdk.protocol.models.commands import HINT, REPLAYED


class StartEvent(Model):
    event: Literal["start"] = "start"
    command_id: str
    replayed: bool = Field(False, description=REPLAYED)
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
    hint: str | None = Field(None, description=HINT)
    replayed: bool = Field(False, description=REPLAYED)
    session_id: str
    generation: int
    session_state: SessionState

    def of(self, start: StartEvent) -> ExitEvent:
        """The exit with what only the start of a command says of the call: one that is followed
        over a second connection was begun before."""
        update = {"replayed": start.replayed, "session_state": start.session_state}
        return self.model_copy(update=update)


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
