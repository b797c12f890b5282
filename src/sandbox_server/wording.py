"""What wardens and the table tell, in the words of the wire."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
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
from sandbox_server.runtime.warden.answers import CommandSummary, StreamName
from sandbox_server.sessions.live import LiveSession

LOOKBACK = 64 * 1024


class EventWording:
    """The events of one command, from an offset in its output on.

    Characters that come in pieces are put together. One that was begun before the offset is told
    as well, if what lies LOOKBACK before the offset has been heard.
    """

    def __init__(
        self, session: LiveSession, state: SessionState, *, output_limit: int, offset: int = 0
    ) -> None:
        self._life = life(session, state)
        self._output_limit = output_limit
        self._offset = offset
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders: dict[StreamName, codecs.IncrementalDecoder] = {
            "stdout": decoder("replace"),
            "stderr": decoder("replace"),
        }

    def of(self, event: Event) -> Iterator[CommandEvent]:
        if isinstance(event, Started):
            yield StartEvent(command_id=event.command_id, **self._life)
        elif isinstance(event, Output):
            yield from self._output(event)
        elif isinstance(event, Gap):
            yield from self._gap(event)
        else:
            yield from self._exit(event)

    def _output(self, piece: Output) -> Iterator[CommandEvent]:
        early = max(self._offset - piece.offset, 0)
        decoder = self._decoders[piece.stream]
        decoder.decode(piece.data[:early])
        if early < len(piece.data):
            yield OutputEvent(
                event=piece.stream,
                data=decoder.decode(piece.data[early:]),
                offset=piece.offset + early,
                next_offset=piece.offset + len(piece.data),
            )

    def _gap(self, gap: Gap) -> Iterator[CommandEvent]:
        for decoder in self._decoders.values():
            decoder.reset()
        if gap.end > self._offset:
            yield GapEvent(offset=max(gap.start, self._offset), next_offset=gap.end)

    def _exit(self, event: Exited) -> Iterator[CommandEvent]:
        result = event.result
        size = result.output_bytes
        for name, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True)
            if rest and self._offset < size:
                yield OutputEvent(event=name, data=rest, offset=size, next_offset=size)
        fields = result.model_dump(exclude={"state_saved"})
        yield ExitEvent(**fields, truncated=size > self._output_limit, **self._life)


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
