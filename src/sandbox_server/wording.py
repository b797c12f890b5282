"""What wardens and the table tell, in the words of the wire."""

from __future__ import annotations

import codecs
from datetime import UTC, datetime, timedelta
from typing import Any

from sandbox_sdk.protocol.events import (
    CommandEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    CommandInfo,
    ExecuteResult,
    SessionState,
)
from sandbox_server.runtime.warden import CommandResult, Event, Exited, Gap, Output, Started
from sandbox_server.runtime.warden.answers import CommandSummary
from sandbox_server.sessions.live import LiveSession


class EventWording:
    """The events of one command. Characters that come in pieces are put together."""

    def __init__(self, session: LiveSession, state: SessionState, output_limit: int) -> None:
        self._life = life(session, state)
        self._output_limit = output_limit
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in ("stdout", "stderr")}

    def of(self, event: Event) -> CommandEvent:
        if isinstance(event, Started):
            return StartEvent(command_id=event.command_id, **self._life)
        if isinstance(event, Gap):
            return GapEvent(offset=event.start, next_offset=event.end)
        if isinstance(event, Exited):
            result = event.result
            truncated = result.output_bytes > self._output_limit
            fields = result.model_dump(exclude={"state_saved"})
            return ExitEvent(**fields, truncated=truncated, **self._life)
        assert isinstance(event, Output)
        text = self._decoders[event.stream].decode(event.data)
        next_offset = event.offset + len(event.data)
        return OutputEvent(
            event=event.stream, data=text, offset=event.offset, next_offset=next_offset
        )


def execute_result(
    result: CommandResult, session: LiveSession, state: SessionState
) -> ExecuteResult:
    return ExecuteResult(
        **result.exit.model_dump(exclude={"state_saved"}),
        output=result.output,
        stdout=result.stdout,
        stderr=result.stderr,
        truncated=result.truncated,
        **life(session, state),
    )


def command_info(summary: CommandSummary) -> CommandInfo:
    return CommandInfo(**summary.model_dump(exclude={"late_bytes"}))


def life(session: LiveSession, state: SessionState) -> dict[str, Any]:
    record = session.record
    return {
        "session_id": record.session_id,
        "generation": record.generation,
        "session_state": state,
    }


def at(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)


def in_a_while(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=max(seconds, 0))
