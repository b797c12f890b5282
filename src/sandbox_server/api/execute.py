"""/execute and /run_code: run a command or code to its end, stream its events, or resume a stream;
of a command also a dry run."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Body, Header, Query
from pydantic import Discriminator, Field, Tag, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.events import StartEvent, parse_event_id
from sandbox_sdk.protocol.models import Request as RequestModel
from sandbox_sdk.protocol.operations import Operation
from sandbox_sdk.protocol.sandboxes import EventsRequest
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

_EVENT_ID = 200


@dataclass(frozen=True, kw_only=True)
class _Form:
    """One of the two that are run."""

    operation: Operation[Any, Any]
    source: str
    """The field of the request with what to run."""
    follow: type[models.FollowRequest]
    name: str
    """For error messages."""


_COMMAND = _Form(
    operation=op.EXECUTE, source="command", follow=models.FollowRequest, name="a command"
)
_CODE = _Form(operation=op.RUN_CODE, source="code", follow=models.FollowCodeRequest, name="a run")


class _Query(RequestModel):
    command_id: str | None = Field(None, min_length=1, max_length=128)
    offset: int = Field(0, ge=0)
    encoding: models.OutputEncoding = "utf-8"


def execute_route(served: Served) -> KeyedRoute:
    return _route(
        served, _COMMAND, "How it ended, its events, or the verdict.",
        examples.EXECUTE_RESULT, examples.EVENTS,
        described=_described_command, response_model=models.ExecuteResult | models.Verdict,
    )  # fmt: skip


def code_route(served: Served) -> KeyedRoute:
    return _route(
        served, _CODE, "What came of it, or its events.",
        examples.CODE_RESULT, examples.CODE_EVENTS,
        described=_described_code, response_model=models.CodeResult,
    )  # fmt: skip


def _route(
    served: Served, form: _Form, told: str, result: dict[str, Any], events: str, **more: Any
) -> KeyedRoute:
    """told, result, events: of the answer, for the OpenAPI document."""
    plain, streamed = answer("", result), answer("", events, media_type=EVENT_STREAM)
    return KeyedRoute(
        form.operation.path,
        partial(_run, form),
        served=served,
        methods=["POST"],
        summary=form.operation.summary,
        operation_id=form.operation.name,
        tags=[form.operation.tag],
        responses={
            200: {"description": told, "content": {**plain["content"], **streamed["content"]}},
            **error_answers(*ALWAYS, *WITH_BODY, *form.operation.errors),
        },
        **more,
    )


async def _run(form: _Form, asked: Asked) -> Response:
    wants_events = EVENT_STREAM.encode() in header(asked.http.scope, b"accept").lower()
    after = _resumed(asked.http)
    body = _parsed(form, await asked.body())
    bind_target(body)
    if isinstance(body, models.ExecuteRequest) and body.dry_run:
        return json_response(op.CHECK, await asked.sandboxes.check(body))
    if after is not None:
        if not wants_events:
            raise InvalidRequest(f"resuming {form.name} needs the header Accept: {EVENT_STREAM}")
        follow = form.follow(
            thread_id=body.thread_id,
            session_id=body.session_id,
            command_id=after.command_id,
            offset=after.offset,
            encoding=parse_query(_Query, asked.http).encoding,
        )
        return await _streamed(asked, follow, after)
    if not isinstance(body, models.ExecuteRequest | models.RunCodeRequest):
        raise models.invalid_fields([{"type": "missing", "loc": (form.source,), "msg": ""}])
    if wants_events:
        return await _streamed(asked, body, Position())
    result = await asked.sandboxes.call(form.operation, body)
    log_fields.bind(command_id=result.command_id)
    return json_response(form.operation, result)


def _resumed(http: Request) -> Position | None:
    """The position to resume from, if the request has one. Raises InvalidRequest."""
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
    if reached < 0 or len(last_event_id) > _EVENT_ID:
        raise InvalidRequest("Last-Event-ID must be the id of an event of this route's stream")
    return Position(named, reached)


def _parsed(
    form: _Form, body: bytes
) -> models.ExecuteRequest | models.RunCodeRequest | models.Target:
    """What to run, or the target of what is resumed. Raises InvalidRequest."""
    model: type[models.ExecuteRequest | models.RunCodeRequest] = form.operation.request
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        try:
            return models.Target.model_validate_json(body)
        except ValidationError:
            raise invalid_body(model, body, error) from None


async def _streamed(asked: Asked, request: EventsRequest, after: Position) -> Response:
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(Feed(asked.sandboxes.events(request)))
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


# Describing


def _form_of(body: Any) -> str:
    names_target_alone = isinstance(body, dict) and body.keys() <= {"thread_id", "session_id"}
    return "(follow)" if names_target_alone else "(run)"


_Follow = Annotated[models.Target, Tag("(follow)")]
_LastEventId = Annotated[
    str | None, Header(max_length=_EVENT_ID, description="Go on after this event of a stream.")
]


async def _described_command(
    body: Annotated[
        Annotated[models.ExecuteRequest, Tag("(run)")] | _Follow,
        Discriminator(_form_of),
        Body(openapi_examples=examples.EXECUTE_BODIES),
    ],
    last_event_id: _LastEventId = None,
    command_id: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Go on with this command…")
    ] = None,
    offset: Annotated[int, Query(ge=0, description="…from here on in its output.")] = 0,
    encoding: Annotated[models.OutputEncoding, Query(description=models.ENCODING)] = "utf-8",
) -> Any:
    """Run bash source in the session of a thread, which is made where there is none. Working
    directory, variables, functions and options carry over to the next command.

    With `Accept: text/event-stream` the answer is a stream of the events `start`, `stdout`,
    `stderr`, `gap` and `exit`. To go on with one that was cut off, send the target again with
    `Last-Event-ID` or `?command_id=&offset=`: the command is followed, not run again.

    With `dry_run` nothing runs: the answer is what the policy says of the command.
    """


async def _described_code(
    body: Annotated[
        Annotated[models.RunCodeRequest, Tag("(run)")] | _Follow,
        Discriminator(_form_of),
        Body(openapi_examples=examples.CODE_BODIES),
    ],
    last_event_id: _LastEventId = None,
    command_id: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Go on with this run…")
    ] = None,
    offset: Annotated[int, Query(ge=0, description="…from here on.")] = 0,
) -> Any:
    """Run code in a context of a thread's session, which is made where there is none. Variables
    and imports stay in the context.

    With `Accept: text/event-stream` the answer is a stream of the events `start`, `stdout`,
    `stderr`, `result`, `error`, `gap` and `end`. To go on with one that was cut off, send the
    target again with `Last-Event-ID` or `?command_id=&offset=`: the run is followed, not repeated.
    """
