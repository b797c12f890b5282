"""The events of a command that is followed while it runs."""

from __future__ import annotations

from base64 import b64decode
from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models import (
    Artifact,
    ArtifactProblem,
    CodeError,
    CodeFacts,
    CodeResult,
    Model,
    Result,
    Resumed,
    SessionState,
)
from sandbox_sdk.protocol.models.commands import (
    ARTIFACT_PROBLEMS,
    ARTIFACTS,
    HINT,
    REPLAYED,
    RESUMED,
)


class StartEvent(Model):
    event: Literal["start"] = "start"
    command_id: str
    pid: int | None = Field(
        None,
        description="Of the shell that runs it, in the box; null for code, and where the box was "
        "made by an earlier version.",
    )
    replayed: bool = Field(False, description=REPLAYED)
    session_id: str
    generation: int
    session_state: SessionState
    resumed: Resumed | None = Field(None, description=RESUMED)


class OutputEvent(Model):
    """A piece of output. `offset` counts the bytes of both streams; `next_offset` is where to go on
    after this piece."""

    event: Literal["stdout", "stderr"]
    data: str
    encoding: Literal["utf-8", "base64"] = Field(
        "utf-8", description="What `data` is: text, or where `bytes` were asked for base64 of them."
    )
    offset: int
    next_offset: int

    def raw(self) -> bytes:
        """What the command has written, exactly where `bytes` were asked for."""
        return self.data.encode() if self.encoding == "utf-8" else b64decode(self.data)


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
    artifacts: list[Artifact] = Field(default_factory=list, description=ARTIFACTS)
    artifact_problems: list[ArtifactProblem] = Field(
        default_factory=list, description=ARTIFACT_PROBLEMS
    )
    session_id: str
    generation: int
    session_state: SessionState
    resumed: Resumed | None = Field(None, description=RESUMED)

    def of(self, start: StartEvent) -> ExitEvent:
        """The exit with what only the start of a command says of the call: one that is followed
        over a second connection was begun before."""
        return self.model_copy(update=_said_at(start))


CommandEvent = StartEvent | OutputEvent | GapEvent | ExitEvent


class ResultEvent(Result):
    """Something that a run of code shows."""

    event: Literal["result"] = "result"
    offset: int
    next_offset: int


class CodeErrorEvent(CodeError):
    """What a run of code raised. A failure of the stream itself is an `error` event too, with the
    `error` that other answers have."""

    event: Literal["error"] = "error"
    offset: int
    next_offset: int


class EndEvent(CodeFacts):
    """The whole answer of run_code, less output, results and error."""

    event: Literal["end"] = "end"

    def of(self, start: StartEvent) -> EndEvent:
        """See ExitEvent.of()."""
        return self.model_copy(update=_said_at(start))


def _said_at(start: StartEvent) -> dict[str, object]:
    return {name: getattr(start, name) for name in ("replayed", "session_state", "resumed")}


CodeEvent = StartEvent | OutputEvent | GapEvent | ResultEvent | CodeErrorEvent | EndEvent
AnyEvent = CommandEvent | CodeEvent


class CodeCollector:
    """Puts the events of a run together to its whole answer."""

    def __init__(self) -> None:
        self._text: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._results: list[Result] = []
        self._error: CodeError | None = None

    def add(self, event: CodeEvent) -> CodeResult | None:
        """The answer, once the last event has come."""
        if isinstance(event, OutputEvent):
            self._text[event.event].append(event.data)
        elif isinstance(event, GapEvent):
            missing = f"\n[{event.next_offset - event.offset} bytes are no longer kept]\n"
            self._text["stdout"].append(missing)
        elif isinstance(event, ResultEvent):
            self._results.append(Result(**event.model_dump(include=set(Result.model_fields))))
        elif isinstance(event, CodeErrorEvent):
            self._error = CodeError(**event.model_dump(include=set(CodeError.model_fields)))
        elif isinstance(event, EndEvent):
            return CodeResult(
                **dict(CodeFacts(**dict(event))),
                stdout="".join(self._text["stdout"]),
                stderr="".join(self._text["stderr"]),
                results=self._results,
                error=self._error,
            )
        return None


def event_id(command_id: str, offset: int) -> str:
    """What a client sends as Last-Event-ID to continue after this point."""
    return f"{command_id}:{offset}"


def parse_event_id(text: str) -> tuple[str, int]:
    """The inverse of event_id. Raises ValueError."""
    command_id, _, offset = text.rpartition(":")
    if not command_id:
        raise ValueError(f"event id {text[:200]!r} is not command_id:offset")
    return command_id, int(offset)
