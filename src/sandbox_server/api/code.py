"""/run_code: run code to its end, stream its events, or resume a stream."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Header, Query
from pydantic import Discriminator, Tag, ValidationError
from starlette.responses import Response

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import (
    CodeResult,
    FollowCodeRequest,
    RunCodeRequest,
    Target,
    invalid_fields,
)
from sandbox_server import log_fields
from sandbox_server.api import examples
from sandbox_server.api.execute import EVENT_ID, resumed, streamed
from sandbox_server.api.openapi import answer, error_answers
from sandbox_server.api.operations import ALWAYS, WITH_BODY, invalid_body, json_response
from sandbox_server.api.route import Asked, KeyedRoute, Served, bind_target
from sandbox_server.api.sse import EVENT_STREAM, Position


def code_route(served: Served) -> KeyedRoute:
    events = answer("", examples.CODE_EVENTS, media_type=EVENT_STREAM)["content"]
    plain = answer("", examples.CODE_RESULT)["content"]
    return KeyedRoute(
        op.RUN_CODE.path,
        run_code,
        served=served,
        described=_described,
        methods=["POST"],
        response_model=CodeResult,
        summary=op.RUN_CODE.summary,
        operation_id=op.RUN_CODE.name,
        tags=[op.RUN_CODE.tag],
        responses={
            200: {"description": "What came of it, or its events.", "content": {**plain, **events}},
            **error_answers(*ALWAYS, *WITH_BODY, *op.RUN_CODE.errors),
        },
    )


async def run_code(asked: Asked) -> Response:
    wants_events = EVENT_STREAM in asked.http.headers.get("accept", "").lower()
    after = resumed(asked.http)
    body = _parsed(await asked.body())
    bind_target(body)
    if after is not None:
        if not wants_events:
            raise InvalidRequest(f"resuming a run needs the header Accept: {EVENT_STREAM}")
        follow = FollowCodeRequest(
            thread_id=body.thread_id,
            session_id=body.session_id,
            command_id=after.command_id,
            offset=after.offset,
        )
        return await streamed(asked, asked.sandboxes.stream_code(follow), after)
    if not isinstance(body, RunCodeRequest):
        raise invalid_fields([{"type": "missing", "loc": ("code",), "msg": ""}])
    if wants_events:
        return await streamed(asked, asked.sandboxes.stream_code(body), Position())
    result = await asked.sandboxes.run_code(body)
    log_fields.bind(command_id=result.command_id)
    return json_response(op.RUN_CODE, result)


def _parsed(body: bytes) -> RunCodeRequest | Target:
    """Code to run, or the target of a resumed run. Raises InvalidRequest."""
    try:
        return RunCodeRequest.model_validate_json(body or b"{}")
    except ValidationError as error:
        try:
            return Target.model_validate_json(body)
        except ValidationError:
            raise invalid_body(RunCodeRequest, body, error) from None


def _form(body: Any) -> str:
    names_target_alone = isinstance(body, dict) and body.keys() <= {"thread_id", "session_id"}
    return "(follow)" if names_target_alone else "(run)"


async def _described(
    body: Annotated[
        Annotated[RunCodeRequest, Tag("(run)")] | Annotated[Target, Tag("(follow)")],
        Discriminator(_form),
        Body(openapi_examples=examples.CODE_BODIES),
    ],
    last_event_id: Annotated[
        str | None, Header(max_length=EVENT_ID, description="Go on after this event of a stream.")
    ] = None,
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
