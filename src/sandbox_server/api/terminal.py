"""GET /terminal: a terminal of a sandbox over a WebSocket.

Binary messages are what is typed and what is shown; text messages are JSON with a `type`. Whoever
counts the bytes shown, from the offset told at the start on, can go on from there after a break.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocket

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.events import OutputEvent, StartEvent
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server import log_fields
from sandbox_server.api.operations import parse_query
from sandbox_server.api.websockets import accept, received
from sandbox_server.tasks import stop


class TerminalRequest(models.Target):
    """A new terminal, or with `command_id` one that is there."""

    command_id: str | None = Field(None, min_length=1, max_length=128)
    offset: int = Field(0, ge=0, description="With command_id: where to go on in what it shows.")
    command: str = Field(
        "", max_length=models.MAX_COMMAND, description="Empty: an interactive bash."
    )
    cwd: str | None = Field(None, min_length=1, max_length=4096)
    rows: models.Cells | None = None
    cols: models.Cells | None = None
    term: str = models.TERM
    idempotency_key: str | None = Field(None, min_length=1, max_length=200)


class _Control(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Resize(_Control):
    type: Literal["resize"]
    rows: models.Cells
    cols: models.Cells


class Signal(_Control):
    type: Literal["signal"]
    signal: models.SignalName


class Ping(_Control):
    type: Literal["ping"]


Control = TypeAdapter[Resize | Signal | Ping](
    Annotated[Resize | Signal | Ping, Field(discriminator="type")]
)


async def terminal(socket: WebSocket, sandboxes: Sandboxes) -> None:
    """Serve one viewer. The terminal lives on when it leaves."""
    await accept(socket)
    request = parse_query(TerminalRequest, socket)
    command_id = request.command_id or await _start(sandboxes, request)
    log_fields.bind(command_id=command_id)
    target = models.CommandTarget(
        thread_id=request.thread_id, session_id=request.session_id, command_id=command_id
    )
    if request.command_id and request.rows and request.cols:
        await sandboxes.resize(target, command_id, rows=request.rows, cols=request.cols)
    typing = asyncio.create_task(_type(socket, sandboxes, target))
    showing = asyncio.create_task(_show(socket, sandboxes, target, request.offset))
    try:
        await asyncio.wait((typing, showing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [task for task in (showing, typing) if task.done()]
        await stop(typing, showing)
    for task in ended:
        task.result()


async def _start(sandboxes: Sandboxes, request: TerminalRequest) -> str:
    size = {"rows": request.rows, "cols": request.cols}
    given = {name: value for name, value in size.items() if value is not None}
    started = await sandboxes.execute(
        models.checked(
            models.ExecuteRequest,
            thread_id=request.thread_id,
            session_id=request.session_id,
            command=request.command,
            cwd=request.cwd,
            pty={**given, "term": request.term},
            background=True,
            idempotency_key=request.idempotency_key,
        )
    )
    return started.command_id


async def _show(
    socket: WebSocket, sandboxes: Sandboxes, target: models.CommandTarget, offset: int
) -> None:
    """Send what is shown, until the terminal ends."""
    events = sandboxes.follow(target, target.command_id, offset=offset)
    async with contextlib.aclosing(events):
        async for event in events:
            if isinstance(event, OutputEvent):
                data = event.data.encode()
                await socket.send_bytes(data)
                # Bytes that are not UTF-8 are shown as others, of another number.
                if event.next_offset - event.offset != len(data):
                    await socket.send_json({"type": "offset", "offset": event.next_offset})
            else:
                more = {"offset": offset} if isinstance(event, StartEvent) else {}
                told = event.model_dump(mode="json", exclude={"event"})
                await socket.send_json({"type": event.event, **told, **more})


async def _type(socket: WebSocket, sandboxes: Sandboxes, target: models.CommandTarget) -> None:
    """Pass on what is typed, until the viewer leaves."""
    while True:
        message = await received(socket)
        if data := message.get("bytes"):
            await sandboxes.send_stdin(target, target.command_id, data)
        elif text := message.get("text"):
            await _control(socket, sandboxes, target, text)


async def _control(
    socket: WebSocket, sandboxes: Sandboxes, target: models.CommandTarget, text: str
) -> None:
    try:
        control = Control.validate_json(text)
    except ValidationError as exc:
        raise models.invalid_fields(exc.errors(include_url=False)) from None
    match control:
        case Resize():
            await sandboxes.resize(target, target.command_id, rows=control.rows, cols=control.cols)
        case Signal():
            await sandboxes.signal(target, target.command_id, signal=control.signal)
        case Ping():
            await socket.send_json({"type": "pong"})
