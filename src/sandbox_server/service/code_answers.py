"""Wire events of a run of code, from the events of its box."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError

from sandbox_sdk.protocol import events, models
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime import agent
from sandbox_server.service.answers import EventAnswers

RESULT_BYTES = 16 << 20
"""More than a box sends of the results of one run."""
_Text = Annotated[str, Field(max_length=RESULT_BYTES)]


class _Shown(agent.AgentAnswer):
    type: Literal["result"]
    main: bool = False
    data: dict[agent.Short, Any]
    display_id: agent.Short | None = None
    update: bool = False


class _Raised(agent.AgentAnswer):
    type: Literal["error"]
    name: agent.Short
    value: _Text
    traceback: list[_Text]


class _Late(agent.AgentAnswer):
    type: Literal["late"]
    text: _Text


class _End(agent.AgentAnswer):
    type: Literal["end"]
    context_id: agent.Short = ""
    language: agent.Short = ""
    context_state: models.ContextState = "live"
    execution_count: agent.Count | None = None
    output_bytes: agent.Count = 0
    truncated: bool = False


_RECORD: TypeAdapter[_Shown | _Raised | _Late | _End] = TypeAdapter(
    Annotated[_Shown | _Raised | _Late | _End, Field(discriminator="type")]
)


class CodeAnswers(EventAnswers):
    """Text as of any command, and records out of the stream of results: JSON, one on each line."""

    what: ClassVar[models.PointOf] = "code"

    def __init__(self, *args: Any, asked: models.RunCodeRequest | None, **options: Any) -> None:
        """asked: None where this call did not start the run."""
        super().__init__(*args, **options)
        self._line = bytearray()
        self._late = ""
        self._left = 2 * self._output_limit + RESULT_BYTES
        self._end: _End | None = None
        self._language = asked.language if asked else None
        self._context_id = asked.context_id if asked else None

    def told(self, event: agent.Event) -> Iterator[events.CodeEvent]:
        if isinstance(event, agent.Output):
            self._left -= len(event.data)
            if self._left < 0:
                raise RuntimeUnavailable(
                    "the box sent more of a run than it may keep; restart its context"
                )
            if event.stream == "result":
                yield from self._records(event)
                return
        if isinstance(event, agent.Gap):
            self._line.clear()
        for answer in self.of(event):
            if isinstance(answer, events.ExitEvent):
                yield self._ended(answer)
            else:
                yield answer

    def _records(self, piece: agent.Output) -> Iterator[events.CodeEvent]:
        at = piece.offset
        for part in piece.data.splitlines(keepends=True):
            at += len(part)
            self._line += part
            if part.endswith(b"\n"):
                line, self._line = bytes(self._line), bytearray()
                if event := self._record(line, at):
                    yield event

    def _record(self, line: bytes, end: int) -> events.CodeEvent | None:
        """The event of a record, unless it was told before, or is not for itself."""
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as exc:
            why = exc.errors(include_url=False, include_input=False)[0]["msg"][:200]
            raise RuntimeUnavailable(f"invalid result from the box: {why}") from None
        where = {"offset": end - len(line), "next_offset": end}
        told = end <= self._offset
        match record:
            case _Shown() if not told:
                return events.ResultEvent(
                    data=record.data,
                    is_main_result=record.main,
                    display_id=record.display_id,
                    is_update=record.update,
                    **where,
                )
            case _Raised() if not told:
                return events.CodeErrorEvent(**record.model_dump(exclude={"type"}), **where)
            case _Late():
                self._late = record.text
            case _End():
                self._end = record
        return None

    def _ended(self, exit_: events.ExitEvent) -> events.EndEvent:
        end = self._end or _End(type="end", truncated=True)
        language = end.language or self._language or "python"
        return events.EndEvent(
            **{**_same(exit_), "output_bytes": end.output_bytes},
            context_id=end.context_id or self._context_id or language,
            language=language,
            context_state=end.context_state,
            execution_count=end.execution_count,
            truncated=end.truncated,
            late_output=self._late,
        )


def bash_events(event: events.AnyEvent) -> Iterator[events.CodeEvent]:
    """The events of a command as those of code."""
    if not isinstance(event, events.ExitEvent):
        yield event
        return
    if event.exit_code:
        at = {"offset": event.output_bytes, "next_offset": event.output_bytes}
        yield events.CodeErrorEvent(**dict(bash_error(event.exit_code)), **at)
    yield events.EndEvent(**bash_facts(event), truncated=event.truncated)


def bash_result(result: models.ExecuteResult) -> models.CodeResult:
    """The result of a command as that of code."""
    return models.CodeResult(
        **bash_facts(result),
        truncated=result.truncated,
        stdout=result.stdout,
        stderr=result.stderr,
        results=[],
        error=bash_error(result.exit_code) if result.exit_code else None,
    )


def bash_error(exit_code: int) -> models.CodeError:
    return models.CodeError(name="ExitCode", value=str(exit_code), traceback=[])


def bash_facts(ended: models.ExecuteResult | events.ExitEvent) -> dict[str, Any]:
    bash = {"context_id": models.BASH, "language": models.BASH, "context_state": "live"}
    return {**_same(ended), **bash}


def _same(ended: models.ExecuteResult | events.ExitEvent) -> dict[str, Any]:
    """What is told of code as of a command."""
    names = (
        "command_id", "duration_ms", "timed_out", "reason", "output_bytes", "replayed",
        "session_id", "generation", "session_state", "resumed", "artifacts", "artifact_problems",
    )  # fmt: skip
    return {name: getattr(ended, name) for name in names}
