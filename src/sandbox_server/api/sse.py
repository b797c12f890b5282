"""A command's events as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sandbox_sdk import tracing
from sandbox_sdk.protocol.errors import Internal, SandboxError
from sandbox_sdk.protocol.events import (
    AnyEvent,
    CodeErrorEvent,
    GapEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
    event_id,
)
from sandbox_server.api.errors import error_body, log_failure

EVENT_STREAM = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
AHEAD = 16


@dataclass(frozen=True)
class Position:
    """How far a caller has followed a command."""

    command_id: str = ""
    offset: int = 0


class Silence(Enum):
    """Marker: no event within the timeout."""

    KEPT = "kept"


@dataclass(frozen=True)
class _Ended:
    """Marker: the end of a feed, and the error that ended it."""

    error: Exception | None = None


class Feed:
    """Reads events from an iterator in a task, so that a timeout while waiting does not cancel the
    iterator. Leaving the feed closes the iterator."""

    def __init__(self, events: AsyncIterator[AnyEvent]) -> None:
        self._events = events
        self._queue: asyncio.Queue[AnyEvent | _Ended] = asyncio.Queue(AHEAD)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def next(self, *, patience_s: float | None = None) -> AnyEvent | Silence | None:
        """The next event, None after the last, Silence on a timeout. Raises what the iterator
        raises."""
        try:
            async with asyncio.timeout(patience_s):
                found = await self._queue.get()
        except TimeoutError:
            return Silence.KEPT
        if isinstance(found, _Ended) and found.error:
            raise found.error
        return None if isinstance(found, _Ended) else found

    async def _pump(self) -> None:
        end = _Ended()
        try:
            async for event in self._events:
                await self._queue.put(event)
        except Exception as error:
            end = _Ended(error)
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()
        await self._queue.put(end)


class HoldingResponse(StreamingResponse):
    """Closes `held` when the answer was sent or has failed."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        held: AsyncExitStack,
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        super().__init__(chunks, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


class EventResponse(HoldingResponse):
    """Streams the events of a feed, from which the first was already taken."""

    def __init__(
        self,
        feed: Feed,
        first: AnyEvent | Silence | None,
        *,
        held: AsyncExitStack,
        after: Position,
        request_id: str,
        keep_alive_s: float,
    ) -> None:
        self._feed = feed
        self._request_id = request_id
        self._keep_alive_s = keep_alive_s
        self._position = after
        super().__init__(self._frames(first), held=held, headers=HEADERS, media_type=EVENT_STREAM)

    async def _frames(self, event: AnyEvent | Silence | None) -> AsyncIterator[bytes]:
        try:
            while event is not None:
                yield KEEP_ALIVE if isinstance(event, Silence) else self._frame(event)
                event = await self._feed.next(patience_s=self._keep_alive_s)
        except Exception as error:
            yield self._error_frame(error)

    def _frame(self, event: AnyEvent) -> bytes:
        """The id is the position after this event: a client that resumes from it misses nothing."""
        if isinstance(event, StartEvent):
            self._position = replace(self._position, command_id=event.command_id)
        if isinstance(event, (OutputEvent, GapEvent, ResultEvent, CodeErrorEvent)):
            self._position = replace(self._position, offset=event.next_offset)
        where = event_id(self._position.command_id, self._position.offset)
        return f"id: {where}\n".encode() + frame(
            event.event, event.model_dump_json(exclude={"event"})
        )

    def _error_frame(self, error: Exception) -> bytes:
        if not isinstance(error, SandboxError):
            log_failure(error, request_id=self._request_id)
            error = Internal(
                f"internal error; resume the stream, and report request_id {self._request_id}"
            )
        tracing.current().fail(error.code)
        body: dict[str, Any] = error_body(error, self._request_id)
        return frame("error", json.dumps(body, default=str))


def frame(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
