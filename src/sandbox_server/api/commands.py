"""execute: to its end, or as a stream of events that can be resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Body, Header, Query, Request
from pydantic import Discriminator, Tag

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.events import CommandEvent, StartEvent, parse_event_id
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_server.api.about import about_command, about_target
from sandbox_server.api.dependencies import Asked
from sandbox_server.api.errors import invalid_request
from sandbox_server.api.examples import EXECUTE_BODIES
from sandbox_server.api.sse import EVENT_STREAM, EventResponse, Feed, Position


def _form(body: Any) -> str:
    names_target_alone = isinstance(body, dict) and body.keys() <= {"thread_id", "session_id"}
    return "(follow)" if names_target_alone else "(run)"


ExecuteBody = Annotated[
    Annotated[ExecuteRequest, Tag("(run)")] | Annotated[Target, Tag("(follow)")],
    Discriminator(_form),
    Body(openapi_examples=EXECUTE_BODIES),
]


LastEventId = Annotated[
    str | None, Header(max_length=200, description="Go on after this event of a stream.")
]
CommandId = Annotated[
    str | None, Query(min_length=1, max_length=128, description="Go on with this command…")
]
Offset = Annotated[int, Query(ge=0, description="…from here on in its output.")]


def _resume(last_event_id: str | None, command_id: str | None, offset: int) -> Position | None:
    """Where to go on with a command that was started before. Raises InvalidRequest."""
    if command_id:
        return Position(command_id, offset)
    if not last_event_id:
        return None
    try:
        named, reached = parse_event_id(last_event_id)
    except ValueError:
        reached = -1
    if reached < 0:
        raise InvalidRequest("Last-Event-ID must be the id of an event of this route's stream")
    return Position(named, reached)


async def execute(
    request: Request,
    asked: Asked,
    body: ExecuteBody,
    last_event_id: LastEventId = None,
    command_id: CommandId = None,
    offset: Offset = 0,
) -> Any:
    """Run bash source in the session of a thread, which is made where there is none. Working
    directory, variables, functions and options carry over to the next command.

    With `Accept: text/event-stream` the answer is a stream of the events `start`, `stdout`,
    `stderr`, `gap` and `exit`. To go on with one that was cut off, send the target again with
    `Last-Event-ID` or `?command_id=&offset=`: the command is followed, not run again.

    With `dry_run` nothing runs: the answer is what the policy says of the command.
    """
    resume = _resume(last_event_id, command_id, offset)
    if isinstance(body, ExecuteRequest) and body.dry_run:
        return await asked.sandboxes.check(body, tenant=asked.tenant)
    about_target(body)
    wants_events = EVENT_STREAM in request.headers.get("accept", "").lower()
    if resume is None and not wants_events:
        result = await asked.sandboxes.execute(_command(body), tenant=asked.tenant)
        about_command(result.command_id)
        return result
    if not wants_events:
        raise InvalidRequest(f"a command is followed as events; send Accept: {EVENT_STREAM}")
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(Feed(_events(asked, body, resume)))
        first = await feed.next()
        if isinstance(first, StartEvent):
            about_command(first.command_id)
        return EventResponse(
            feed,
            first,
            held=stack.pop_all(),
            after=resume or Position(),
            request_id=request.state.request_id,
            keep_alive_s=asked.limits.keep_alive_s,
        )


def _events(asked: Asked, body: Target, resume: Position | None) -> AsyncIterator[CommandEvent]:
    if resume is None:
        return asked.sandboxes.stream(_command(body), tenant=asked.tenant)
    target = Target(thread_id=body.thread_id, session_id=body.session_id)
    return asked.sandboxes.follow(
        target, resume.command_id, offset=resume.offset, tenant=asked.tenant
    )


def _command(body: Target) -> ExecuteRequest:
    if isinstance(body, ExecuteRequest):
        return body
    raise invalid_request([{"type": "missing", "loc": ("command",), "msg": "Field required"}])
