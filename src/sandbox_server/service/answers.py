"""What wardens and the table tell, in the words of the wire."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, Literal

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.events import (
    CommandEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    CommandInfo,
    DownloadInfo,
    ExecuteResult,
    FileEntry,
    RunningCommand,
    Session,
    SessionInfo,
    SessionState,
    SessionSummary,
    SessionUsage,
)
from sandbox_server.runtime.agent import (
    BoxState,
    CommandResult,
    CommandSummary,
    DownloadAbout,
    Event,
    Gap,
    Output,
    Started,
    StreamName,
    Usage,
)
from sandbox_server.runtime.agent import FileEntry as BoxFileEntry
from sandbox_server.sessions.live import LiveSession

LOOKBACK = 64 * 1024
_FIRST = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


@dataclass(frozen=True, kw_only=True)
class ServiceFacts:
    """What the service says of itself and its sandboxes."""

    worker_id: str
    runtime: str
    why: str = ""
    """Why this runtime, in words for people."""
    limits: models.Limits


class EventAnswers:
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

    def _exit(self, result: CommandResult) -> Iterator[CommandEvent]:
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
        **result.model_dump(exclude={"state_saved"}),
        output=result.output,
        stdout=result.stdout,
        stderr=result.stderr,
        truncated=result.truncated,
        **life(session, state),
    )


def command_info(summary: CommandSummary) -> CommandInfo:
    return CommandInfo(**summary.model_dump(exclude={"late_bytes"}))


def told_session(
    session: LiveSession,
    facts: ServiceFacts,
    *,
    status: Literal["created", "existing"],
    now: float,
) -> Session:
    record = session.record
    return Session(
        session_id=record.session_id,
        thread_id=record.thread_id,
        status=status,
        generation=record.generation,
        worker=facts.worker_id,
        runtime=facts.runtime,
        created_at=at(record.created_at),
        expires_at=_expires_at(session, now),
        limits=facts.limits,
    )


def session_info(
    session: LiveSession, facts: ServiceFacts, state: BoxState, usage: Usage, *, now: float
) -> SessionInfo:
    """The box has the last word on how long it has been idle."""
    idle_s = 0.0 if session.busy else min(state.idle_s, session.idle_s(now))
    running = [
        RunningCommand(command_id=c.command_id, age_s=c.age_s, output_bytes=c.output_bytes)
        for c in state.commands
        if c.running
    ]
    return SessionInfo(
        **dict(told_session(session, facts, status="existing", now=now)),
        state="busy" if running or session.busy else "idle",
        last_used_at=datetime.now(UTC) - timedelta(seconds=idle_s),
        idle_s=round(idle_s, 3),
        commands=state.ran,
        running=running,
        usage=SessionUsage(**usage.model_dump()),
    )


def session_summary(session: LiveSession, facts: ServiceFacts, *, now: float) -> SessionSummary:
    record = session.record
    return SessionSummary(
        session_id=record.session_id,
        thread_id=record.thread_id,
        generation=record.generation,
        worker=facts.worker_id,
        runtime=facts.runtime,
        created_at=at(record.created_at),
        idle_s=round(session.idle_s(now), 3),
        expires_at=_expires_at(session, now),
        state="busy" if session.busy else "idle",
    )


def download_info(about: DownloadAbout) -> DownloadInfo:
    return DownloadInfo(
        filename=PurePosixPath(about.path).name or "workspace",
        path=about.path,
        type=about.type,
        size=about.size,
        sha256=about.sha256,
        modified_at=at(about.modified_at),
    )


def file_entry(entry: BoxFileEntry) -> FileEntry:
    return FileEntry(**{**dict(entry), "modified_at": at(entry.modified_at)})


def life(session: LiveSession, state: SessionState) -> dict[str, Any]:
    record = session.record
    return {
        "session_id": record.session_id,
        "generation": record.generation,
        "session_state": state,
    }


def at(timestamp: float) -> datetime:
    """The nearest time there is: a file may be from any year."""
    return datetime.fromtimestamp(min(max(timestamp, _FIRST), _LAST), UTC)


def _expires_at(session: LiveSession, now: float) -> datetime:
    left_s = session.idle_timeout_s - session.idle_s(now)
    return datetime.now(UTC) + timedelta(seconds=max(left_s, 0))
