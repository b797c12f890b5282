"""Builds wire models from the answers of boxes and from the session table."""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from sandbox_sdk.protocol import events, models
from sandbox_sdk.protocol.models import PointOf, SessionState
from sandbox_server.network.egress import Egress
from sandbox_server.network.modes import NetworkTerms
from sandbox_server.runtime import agent
from sandbox_server.service.agents import agent_info
from sandbox_server.service.hints import TAIL
from sandbox_server.service.stored import Collected
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.volumes import volumes_of

_ALLOWED = 100
LOOKBACK = 64 * 1024
_FIRST = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


@dataclass(frozen=True, kw_only=True)
class ServiceFacts:
    """What the service reports about itself and its sandboxes."""

    worker_id: str
    runtime: str
    why: str = ""
    """Why this runtime was chosen, as text for people."""
    limits: models.Limits
    """What a session has that asks for nothing, on the default runtime."""
    endless_commands: bool = True
    """Whether a call may ask for a command without a time limit."""
    by_provider: Mapping[str, models.Limits] = field(default_factory=dict)
    """The same for the runtimes that sessions can ask for."""

    def limits_of(self, session: LiveSession) -> models.Limits:
        limits = self.by_provider.get(session.provider, self.limits)
        if session.network.mode != "none" or limits.network != "none":
            limits = limits.model_copy(update=network_limits(session.network))
        return limits if session.limits is None else limits.with_values(session.limits)

    def command_timeout_s(self, session: LiveSession) -> float:
        """The time limit of a call that asks for none."""
        if session.limits is not None:
            return session.limits["command_timeout_s"]
        return self.by_provider.get(session.provider, self.limits).command_timeout_s


def network_limits(network: NetworkTerms) -> dict[str, Any]:
    """As a session is told."""
    mode, texts = network.told()
    return {"network": mode, "network_allow": texts[:_ALLOWED]}


Hints = Callable[[agent.CommandResult, str], str | None]
"""The hint for a result, from the end of its output."""


class EventAnswers:
    """Wire events of one command, from an offset in its output.

    Split UTF-8 characters are joined, including one that began before the offset: for that, the
    box's events have to start LOOKBACK earlier.
    """

    what: ClassVar[PointOf] = "command"

    def __init__(
        self,
        session: LiveSession,
        state: SessionState,
        *,
        output_limit: int,
        offset: int = 0,
        encoding: models.OutputEncoding = "utf-8",
        hints: Hints = lambda _result, _tail: None,
    ) -> None:
        self._exact = encoding == "bytes"
        self.replayed = False
        """Whether an earlier call started the command."""
        self.kept: Collected | None = None
        """Its artifacts, known at its end."""
        self._session = session_life(session, state)
        self._output_limit = output_limit
        self._offset = offset
        self._hints = hints
        self._tail = bytearray()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders: dict[Literal["stdout", "stderr"], codecs.IncrementalDecoder] = {
            "stdout": decoder("replace"),
            "stderr": decoder("replace"),
        }

    @property
    def tail(self) -> str:
        """The end of the output so far."""
        return self._tail.decode("utf-8", "replace")

    def told(self, event: agent.Event) -> Iterator[events.AnyEvent]:
        """As callers are told of an event."""
        return self.of(event)

    def of(self, event: agent.Event) -> Iterator[events.CommandEvent]:
        if isinstance(event, agent.Started):
            yield events.StartEvent(
                command_id=event.command_id,
                pid=event.pid,
                replayed=self.replayed,
                **self._session,
            )
        elif isinstance(event, agent.Output):
            yield from self._output(event)
        elif isinstance(event, agent.Gap):
            yield from self._gap(event)
        else:
            yield from self._exit(event)

    def _output(self, piece: agent.Output) -> Iterator[events.CommandEvent]:
        if piece.stream == "result":  # Of code, which is followed as a command.
            return
        self._tail += piece.data[-TAIL:]
        del self._tail[:-TAIL]
        early = max(self._offset - piece.offset, 0)
        text = self._text(piece.stream, piece.data, early)
        if early < len(piece.data):
            yield events.OutputEvent(
                event=piece.stream,
                data=text,
                encoding="base64" if self._exact else "utf-8",
                offset=piece.offset + early,
                next_offset=piece.offset + len(piece.data),
            )

    def _text(self, stream: Literal["stdout", "stderr"], data: bytes, early: int) -> str:
        """early: bytes that are not wanted, but may begin a character."""
        if self._exact:
            return b64encode(data[early:]).decode()
        decoder = self._decoders[stream]
        decoder.decode(data[:early])
        return decoder.decode(data[early:])

    def _gap(self, gap: agent.Gap) -> Iterator[events.CommandEvent]:
        for decoder in self._decoders.values():
            decoder.reset()
        if gap.end > self._offset:
            yield events.GapEvent(offset=max(gap.start, self._offset), next_offset=gap.end)

    def _exit(self, result: agent.CommandResult) -> Iterator[events.CommandEvent]:
        size = result.output_bytes
        for name, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True)
            if rest and self._offset < size:
                yield events.OutputEvent(event=name, data=rest, offset=size, next_offset=size)
        fields = result.model_dump(exclude={"state_saved", "marked", "unchanged", "pid"})
        yield events.ExitEvent(
            **fields,
            truncated=size > self._output_limit,
            hint=self._hints(result, self.tail),
            replayed=self.replayed,
            **_kept(self.kept),
            **self._session,
        )


def execute_result(
    result: agent.CommandResult,
    session: LiveSession,
    state: SessionState,
    kept: Collected | None = None,
    *,
    replayed: bool = False,
    hint: str | None = None,
) -> models.ExecuteResult:
    return models.ExecuteResult(
        command_id=result.command_id,
        exit_code=result.exit_code,
        signal=result.signal,
        reason=result.reason,
        timed_out=result.timed_out,
        duration_ms=result.duration_ms,
        output_bytes=result.output_bytes,
        cwd=result.cwd,
        output=result.output,
        stdout=result.stdout,
        stderr=result.stderr,
        truncated=result.truncated,
        replayed=replayed,
        hint=hint,
        **_kept(kept),
        **session_life(session, state),
    )


def _kept(collected: Collected | None) -> dict[str, Any]:
    return {} if collected is None else dict(vars(collected))


def command_info(summary: agent.CommandSummary, text: str | None = None) -> models.CommandInfo:
    size = None
    if summary.pty is not None:
        size = models.PtySize(rows=summary.pty[0], cols=summary.pty[1])
    return models.CommandInfo(
        **summary.model_dump(exclude={"late_bytes", "pty", "text"}),
        command=summary.text if text is None else text,
        pty=size,
    )


def _session_fields(session: LiveSession, facts: ServiceFacts, now: float) -> dict[str, Any]:
    record = session.record
    return {
        "session_id": record.session_id,
        "thread_id": record.thread_id,
        "generation": record.generation,
        "worker": facts.worker_id,
        "runtime": session.provider or facts.runtime,
        "environment": session.environment,
        "metadata": session.metadata,
        "created_at": at(record.created_at),
        "expires_at": at(session.expires_at(now)),
        "end_at": None if session.end_at is None else at(session.end_at),
    }


def session_answer(
    session: LiveSession,
    facts: ServiceFacts,
    *,
    status: Literal["created", "existing"],
    now: float,
) -> models.Session:
    fields = _session_fields(session, facts, now)
    limits = facts.limits_of(session)
    agent = session.made_for and agent_info(session.made_for, limits)
    return models.Session(
        **fields,
        user=session.user.name,
        home=session.user.home,
        pause_at_end=session.pauses_at_end,
        sandbox_id=session.box.id,
        status=status,
        limits=limits,
        agent=agent,
        volumes=mounted(session),
        ports=session.ports,
        egress_rules=session.egress_rules,
    )


def mounted(session: LiveSession) -> list[models.MountedVolume]:
    """Its volumes."""
    return [models.MountedVolume(**each.model_dump()) for each in volumes_of(session.record)]


def session_info(
    session: LiveSession,
    facts: ServiceFacts,
    state: agent.BoxState,
    usage: agent.Usage,
    *,
    now: float,
) -> models.SessionInfo:
    """Idle time is the lower of the box's and the server's."""
    idle_s = 0.0 if session.busy else min(state.idle_s, session.idle_s(now))
    running = [
        models.RunningCommand(command_id=c.command_id, age_s=c.age_s, output_bytes=c.output_bytes)
        for c in state.commands
        if c.running
    ]
    return models.SessionInfo(
        **dict(session_answer(session, facts, status="existing", now=now)),
        state=_activity(session, running=bool(running)),
        last_used_at=datetime.now(UTC) - timedelta(seconds=idle_s),
        idle_s=round(idle_s, 3),
        commands=state.ran,
        running=running,
        usage=models.SessionUsage(**usage.model_dump()),
        egress=None if session.egress is None else egress_usage(session.egress),
    )


def egress_usage(egress: Egress) -> models.EgressUsage:
    return models.EgressUsage(
        connections=egress.connections,
        refused=egress.refused,
        bytes_in=egress.meter.bytes_in,
        bytes_out=egress.meter.bytes_out,
    )


def session_summary(
    session: LiveSession, facts: ServiceFacts, *, now: float
) -> models.SessionSummary:
    return models.SessionSummary(
        **_session_fields(session, facts, now),
        idle_s=round(session.idle_s(now), 3),
        state=_activity(session),
    )


def _activity(session: LiveSession, *, running: bool = False) -> models.SessionActivity:
    if session.paused_at is not None:
        return "paused"
    return "busy" if running or session.busy else "idle"


def download_info(about: agent.DownloadAbout) -> models.DownloadInfo:
    fields = {**dict(about), "modified_at": at(about.modified_at)}
    return models.DownloadInfo(filename=PurePosixPath(about.path).name or "workspace", **fields)


def file_entry(entry: agent.FileEntry) -> models.FileEntry:
    fields = {**dict(entry), "modified_at": at(entry.modified_at)}
    if entry.leads_to is not None:
        fields["leads_to"] = models.LinkEnd(**dict(entry.leads_to))
    return models.FileEntry(**fields)


def session_life(session: LiveSession, state: SessionState) -> dict[str, Any]:
    """The fields that identify the session in every answer about a command."""
    record = session.record
    return {
        "session_id": record.session_id,
        "generation": record.generation,
        "session_state": state,
        "resumed": session.resumed if state == "resumed" else None,
    }


def at(timestamp: float) -> datetime:
    """Clamped to what datetime can hold: a file may have any timestamp."""
    return datetime.fromtimestamp(min(max(timestamp, _FIRST), _LAST), UTC)
