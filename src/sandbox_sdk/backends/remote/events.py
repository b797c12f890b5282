"""The events of a command, over as many connections as it takes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
from pydantic import TypeAdapter

from sandbox_sdk.backends.remote.retry import FailedAttempt
from sandbox_sdk.backends.remote.server import SILENCE_S, Call, Server
from sandbox_sdk.protocol.errors import Internal, SandboxError, Unreachable
from sandbox_sdk.protocol.events import (
    AnyEvent,
    CodeErrorEvent,
    EndEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
    event_id,
)
from sandbox_sdk.protocol.models import OutputEncoding
from sandbox_sdk.tracing import NO_SPAN, Span

_NAMES = ("start", "stdout", "stderr", "gap", "exit", "result", "end", "error")
"""The events known here; others, of a later version, are skipped."""
_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


async def events_of(
    server: Server,
    path: str,
    body: dict[str, Any],
    *,
    tenant: str | None,
    command_id: str | None = None,
    offset: int = 0,
    encoding: OutputEncoding = "utf-8",
    span: Span = NO_SPAN,
) -> AsyncGenerator[AnyEvent]:
    """Run or follow a command or code. If the connection is cut, a new one continues at the same
    place: no event is lost or repeated. To run something, body needs an idempotency key. Raises
    SandboxError."""
    start: StartEvent | None = None
    repeated = False
    retry = server.retry()
    while True:
        connected = time.monotonic()
        try:
            call = _call(path, body, tenant, command_id, offset, encoding, span)
            connection = _connection(server, call)
            async with contextlib.aclosing(connection) as events:
                async for event in events:
                    if isinstance(event, StartEvent):
                        # By session_id: a later session of the thread would not know it.
                        body, command_id = {"session_id": event.session_id}, event.command_id
                        if start is not None:
                            continue
                        if repeated:  # By this call itself, as far as can be known.
                            event = event.model_copy(update={"replayed": False})
                        start = event
                    elif isinstance(event, OutputEvent | GapEvent | ResultEvent | CodeErrorEvent):
                        offset = event.next_offset
                    retry.start_over()
                    if isinstance(event, ExitEvent | EndEvent):
                        yield event if start is None else event.of(start)
                        return
                    yield event
            cut = Unreachable(
                f"the stream from {server.url} ended before its exit; follow it again"
            )
            raise FailedAttempt(cut, repeatable=True)
        except FailedAttempt as failed:
            repeated |= failed.cut
            retry.look_back(failed, lasted_s=time.monotonic() - connected)
            await server.pause(retry, failed)


def _call(
    path: str,
    body: dict[str, Any],
    tenant: str | None,
    command_id: str | None,
    offset: int,
    encoding: OutputEncoding,
    span: Span,
) -> Call:
    headers = {"accept": "text/event-stream"}
    params = None
    if command_id is not None:
        headers["last-event-id"] = event_id(command_id, offset)
        params = None if encoding == "utf-8" else {"encoding": encoding}
    return Call(
        method="POST", path=path, json=body, params=params, headers=headers, repeatable=True,
        silence_s=SILENCE_S, tenant=tenant, span=span,
    )  # fmt: skip


async def _connection(server: Server, call: Call) -> AsyncGenerator[AnyEvent]:
    async with server.open(call) as answer:
        async for name, data in _parsed(answer):
            if name in _NAMES:
                event = _event(name, data)
                if isinstance(event, StartEvent) and call.repeated:
                    event = event.model_copy(update={"replayed": False})
                yield event


async def _parsed(answer: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Name and data of every complete event."""
    name, data = "", ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data = f"{data}\n{value}" if data else value
        elif not line and data:
            yield name, data
            name = data = ""


def _event(name: str, data: str) -> AnyEvent:
    try:
        body = json.loads(data)
        if name == "error" and "traceback" not in body:
            body = body.get("error", body)
            raise SandboxError.from_wire(
                str(body["code"]), str(body["message"]), body.get("details")
            )
        return _EVENT.validate_python({"event": name, **body})
    except (ValueError, KeyError, TypeError) as exc:
        raise Internal(
            f"invalid {name} event from the server, maybe of another version: {type(exc).__name__}"
        ) from exc
