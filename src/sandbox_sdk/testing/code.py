"""Code in a fake sandbox: it ends as the test says, like commands."""

from __future__ import annotations

from typing import Any, Literal

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import ContextNotFound, InvalidRequest
from sandbox_sdk.protocol.events import (
    CodeErrorEvent,
    CodeEvent,
    EndEvent,
    OutputEvent,
    ResultEvent,
)
from sandbox_sdk.testing.commands import FakeCommand
from sandbox_sdk.testing.sessions import FakeSession


def context_of(
    session: FakeSession, request: models.RunCodeRequest
) -> tuple[models.Context, models.ContextState]:
    """The context of a run, made if it is a default one. Raises ContextNotFound, InvalidRequest."""
    if request.context_id is not None:
        found = find_context(session, request.context_id)
        if request.language not in (None, found.language):
            raise InvalidRequest(f"context {found.context_id} is for {found.language}")
        return found, "live"
    language = request.language or "python"
    if language in session.contexts:
        return session.contexts[language], "live"
    made = new_context(language, language, models.WORKSPACE, default=True)
    session.contexts[language] = made
    return made, "created"


def find_context(session: FakeSession, context_id: str) -> models.Context:
    """Raises ContextNotFound."""
    if context_id not in session.contexts:
        raise ContextNotFound(
            f"no context {context_id} in this session; list its contexts, or create one"
        )
    return session.contexts[context_id]


def new_context(context_id: str, language: str, cwd: str, *, default: bool) -> models.Context:
    return models.Context(
        context_id=context_id, language=language, kernel="fake", cwd=cwd, default=default,
        state="idle",
    )  # fmt: skip


def events_of(
    command: FakeCommand,
    context: models.Context,
    state: models.ContextState,
    about: dict[str, Any],
) -> list[CodeEvent]:
    """What a run that has ended wrote, showed and raised."""
    answer, at = command.answer, command.output_bytes
    found: list[CodeEvent] = []
    streams: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
    for stream, text in zip(streams, (answer.output, answer.stderr), strict=True):
        if text:
            found.append(OutputEvent(event=stream, data=text, offset=0, next_offset=at))
    for data in answer.results:
        main = data is answer.results[-1]
        found.append(ResultEvent(data=dict(data), is_main_result=main, offset=at, next_offset=at))
    error = answer.error
    if error is None and command.exit_code:
        error = models.CodeError(name="ExitCode", value=str(command.exit_code), traceback=[])
    if error is not None:
        found.append(CodeErrorEvent(**dict(error), offset=at, next_offset=at))
    facts = command.facts()
    found.append(
        EndEvent(
            command_id=command.command_id, context_id=context.context_id,
            language=context.language, context_state=state,
            execution_count=context.execution_count, duration_ms=facts["duration_ms"],
            timed_out=facts["timed_out"], reason=facts.get("reason"), truncated=False,
            output_bytes=at, artifacts=command.artifacts, **about,
        )
    )  # fmt: skip
    return found
