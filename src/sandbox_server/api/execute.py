"""/execute: run a command to its end, stream its events, resume a stream, or a dry run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Body, Header, Query
from pydantic import Discriminator, Field, Tag, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.events import AnyEvent, StartEvent, parse_event_id
from sandbox_sdk.protocol.models import (
    ENCODING,
    CheckRequest,
    ExecuteRequest,
    ExecuteResult,
    FollowRequest,
    OutputEncoding,
    Target,
    Verdict,
    invalid_fields,
)
from sandbox_sdk.protocol.models import Request as RequestModel
from sandbox_server import log_fields
from sandbox_server.api import examples
from sandbox_server.api.headers import header
from sandbox_server.api.openapi import answer, error_answers
from sandbox_server.api.operations import (
    ALWAYS,
    WITH_BODY,
    invalid_body,
    json_response,
    parse_query,
)
from sandbox_server.api.route import Asked, KeyedRoute, Served, bind_target
from sandbox_server.api.sse import EVENT_STREAM, EventResponse, Feed, Position


def execute_route(served: Served) -> KeyedRoute:
    streamed = answer("", examples.EVENTS, media_type=EVENT_STREAM)["content"]
    plain = answer("", examples.EXECUTE_RESULT)["content"]
    return KeyedRoute(
        op.EXECUTE.path,
        execute,
        served=served,
        described=_described,
        methods=["POST"],
        response_model=ExecuteResult | Verdict,
        summary=op.EXECUTE.summary,
        operation_id=op.EXECUTE.name,
        tags=[op.EXECUTE.tag],
        responses={
            200: {
                "description": "How it ended, its events, or the verdict.",
                "content": {**plain, **streamed},
            },
            **error_answers(*ALWAYS, *WITH_BODY, *op.EXECUTE.errors),
        },
    )


EVENT_ID = 200


class _Query(RequestModel):
    command_id: str | None = Field(None, min_length=1, max_length=128)
    offset: int = Field(0, ge=0)
    encoding: OutputEncoding = "utf-8"


async def execute(asked: Asked) -> Response:
    wants_events = EVENT_STREAM.encode() in header(asked.http.scope, b"accept").lower()
    after = resumed(asked.http)
    body = _parsed(await asked.body())
    bind_target(body)
    if isinstance(body, ExecuteRequest) and body.dry_run:
        request = CheckRequest(**{**dict(body), "dry_run": True})
        verdict = await asked.sandboxes.call(op.CHECK, request)
        return json_response(op.CHECK, verdict)
    if after is None and not wants_events:
        result = await asked.sandboxes.call(op.EXECUTE, _command(body))
        log_fields.bind(command_id=result.command_id)
        return json_response(op.EXECUTE, result)
    if not wants_events:
        raise InvalidRequest(f"resuming a command needs the header Accept: {EVENT_STREAM}")
    return await streamed(asked, _events(asked, body, after), after or Position())


def resumed(http: Request) -> Position | None:
    """The position to resume a command from, if the request has one. Raises InvalidRequest."""
    if http.scope["query_string"]:
        query = parse_query(_Query, http)
        if query.command_id:
            return Position(query.command_id, query.offset)
    last_event_id = header(http.scope, b"last-event-id").decode("latin-1")
    if not last_event_id:
        return None
    try:
        named, reached = parse_event_id(last_event_id)
    except ValueError:
        reached = -1
    if reached < 0 or len(last_event_id) > EVENT_ID:
        raise InvalidRequest("Last-Event-ID must be the id of an event of this route's stream")
    return Position(named, reached)


def _parsed(body: bytes) -> ExecuteRequest | Target:
    """A command to run, or the target of a resumed one. Raises InvalidRequest."""
    try:
        return ExecuteRequest.model_validate_json(body or b"{}")
    except ValidationError as error:
        try:
            return Target.model_validate_json(body)
        except ValidationError:
            raise invalid_body(ExecuteRequest, body, error) from None


def _command(body: Target) -> ExecuteRequest:
    if isinstance(body, ExecuteRequest):
        return body
    raise invalid_fields([{"type": "missing", "loc": ("command",), "msg": ""}])


def _events(asked: Asked, body: Target, after: Position | None) -> AsyncIterator[AnyEvent]:
    if after is None:
        return asked.sandboxes.events(_command(body))
    return asked.sandboxes.events(
        FollowRequest(
            thread_id=body.thread_id,
            session_id=body.session_id,
            command_id=after.command_id,
            offset=after.offset,
            encoding=parse_query(_Query, asked.http).encoding,
        )
    )


async def streamed(asked: Asked, events: AsyncIterator[AnyEvent], after: Position) -> Response:
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(Feed(events))
        first = await feed.next()
        if isinstance(first, StartEvent):
            log_fields.bind(command_id=first.command_id)
        return EventResponse(
            feed,
            first,
            held=stack.pop_all(),
            after=after,
            request_id=asked.request_id,
            keep_alive_s=asked.limits.keep_alive_s,
        )


def _form(body: Any) -> str:
    names_target_alone = isinstance(body, dict) and body.keys() <= {"thread_id", "session_id"}
    return "(follow)" if names_target_alone else "(run)"


async def _described(
    body: Annotated[
        Annotated[ExecuteRequest, Tag("(run)")] | Annotated[Target, Tag("(follow)")],
        Discriminator(_form),
        Body(openapi_examples=examples.EXECUTE_BODIES),
    ],
    last_event_id: Annotated[
        str | None, Header(max_length=EVENT_ID, description="Go on after this event of a stream.")
    ] = None,
    command_id: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Go on with this command…")
    ] = None,
    offset: Annotated[int, Query(ge=0, description="…from here on in its output.")] = 0,
    encoding: Annotated[OutputEncoding, Query(description=ENCODING)] = "utf-8",
) -> Any:
    """Run bash source in the session of a thread, which is made where there is none. Working
    directory, variables, functions and options carry over to the next command.

    With `Accept: text/event-stream` the answer is a stream of the events `start`, `stdout`,
    `stderr`, `gap` and `exit`. To go on with one that was cut off, send the target again with
    `Last-Event-ID` or `?command_id=&offset=`: the command is followed, not run again.

    With `dry_run` nothing runs: the answer is what the policy says of the command.
    """
