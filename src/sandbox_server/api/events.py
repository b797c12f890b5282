"""GET /events: what happens, as one answer or as a stream without an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from starlette.responses import Response

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import (
    Happening,
    HappeningList,
    HappeningsRequest,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.access.limited import LimitedSandboxes
from sandbox_server.api import examples
from sandbox_server.api.errors import error_body
from sandbox_server.api.headers import header
from sandbox_server.api.openapi import answer
from sandbox_server.api.operations import describe, json_response, parse_query
from sandbox_server.api.route import Asked, KeyedRoute, Served
from sandbox_server.api.sse import EVENT_STREAM, HEADERS, KEEP_ALIVE, HoldingResponse, frame


class Ending:
    """Ends the waiting of callers when the server stops."""

    def __init__(self) -> None:
        self._stops = asyncio.Event()

    def set(self) -> None:
        self._stops.set()

    async def or_answer(
        self, sandboxes: Sandboxes, request: HappeningsRequest
    ) -> HappeningList | None:
        """None if the server stops first. Raises SandboxError."""
        asking = asyncio.ensure_future(sandboxes.happenings(request))
        stopping = asyncio.ensure_future(self._stops.wait())
        try:
            await asyncio.wait([asking, stopping], return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, stopping):
                task.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)


def events_route(served: Served, ending: Ending) -> KeyedRoute:
    async def events(asked: Asked) -> Response:
        request = parse_query(HappeningsRequest, asked.http)
        if EVENT_STREAM.encode() not in header(asked.http.scope, b"accept").lower():
            found = await ending.or_answer(asked.sandboxes, request)
            return json_response(
                op.EVENTS, found or HappeningList(events=[], next=request.after or "")
            )
        resumed = header(asked.http.scope, b"last-event-id").decode("latin-1")
        after = resumed or request.after
        request = checked(
            HappeningsRequest, **request.model_dump(exclude={"after", "wait"}), after=after
        )
        # Before the answer begins, so that a wrong position is an error of its own.
        first = await asked.sandboxes.happenings(request)
        sandboxes = asked.sandboxes
        if isinstance(sandboxes, LimitedSandboxes):  # The stream is one request.
            sandboxes = sandboxes.inner
        frames = _frames(asked, sandboxes, ending, request, first)
        held = AsyncExitStack()
        held.push_async_callback(frames.aclose)
        return HoldingResponse(frames, held=held, headers=HEADERS, media_type=EVENT_STREAM)

    about = describe(op.EVENTS)
    streamed = answer("", examples.HAPPENING_EVENTS, media_type=EVENT_STREAM)["content"]
    plain = about["responses"][200]
    about["responses"][200] = {**plain, "content": {**plain["content"], **streamed}}
    return KeyedRoute(op.EVENTS.path, events, served=served, scope="read", **about)


async def _frames(
    asked: Asked,
    sandboxes: Sandboxes,
    ending: Ending,
    request: HappeningsRequest,
    first: HappeningList,
) -> AsyncGenerator[bytes]:
    found: HappeningList | None = first
    yield KEEP_ALIVE
    try:
        while found is not None:
            for event in found.events:
                yield _told(event)
            if not found.events:
                yield KEEP_ALIVE
            next_one = request.model_copy(
                update={"after": found.next, "wait": asked.limits.keep_alive_s}
            )
            found = await ending.or_answer(sandboxes, next_one)
    except SandboxError as error:
        yield frame("error", json.dumps(error_body(error, asked.request_id), default=str))


def _told(event: Happening) -> bytes:
    return f"id: {event.id}\n".encode() + frame(event.kind, event.model_dump_json())
