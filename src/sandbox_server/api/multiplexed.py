"""GET /ws: any number of calls over one WebSocket.

Every message is JSON. A call is `{"id": …, "op": NAME, "request": {…}}` with an id of the caller's
choice and the name of an operation; it is answered by `{"id": …, "answer": {…}}` or
`{"id": …, "error": {…}}`. `stream` and `follow` answer with events first, as they come. `cancel`
ends what is sent for an id; a command goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandbox_sdk.nearest import nearest
from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import Capacity, Internal, InvalidRequest, SandboxError
from sandbox_sdk.protocol.operations import OPERATIONS
from sandbox_sdk.protocol.sandboxes import EventsRequest, Sandboxes
from sandbox_server.api.errors import error_body, log_failure
from sandbox_server.api.websockets import accept, received
from sandbox_server.tasks import stop

AT_ONCE = 64
_OPERATIONS = {operation.name: operation for operation in OPERATIONS}
_EVENTS: dict[str, type[EventsRequest]] = {
    "stream": models.ExecuteRequest,
    "follow": models.FollowRequest,
    "stream_code": models.RunCodeRequest,
    "follow_code": models.FollowCodeRequest,
}
_CANCEL = "cancel"
_NAMES = (*_EVENTS, _CANCEL, *_OPERATIONS)


class Call(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, StringConstraints(min_length=1, max_length=64)] | int
    op: str
    request: dict[str, Any] = Field(default_factory=dict)


async def multiplexed(socket: WebSocket, sandboxes: Sandboxes) -> None:
    """Serve one caller. What it has started lives on when it leaves."""
    await accept(socket)
    calls = _Calls(socket, sandboxes)
    try:
        while True:
            message = await received(socket)
            await calls.take(message.get("text") or message.get("bytes") or b"")
    finally:
        await calls.stop()


class _Calls:
    def __init__(self, socket: WebSocket, sandboxes: Sandboxes) -> None:
        self._socket = socket
        self._sandboxes = sandboxes
        self._running: dict[str | int, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        await stop(*self._running.values())

    async def take(self, text: str | bytes) -> None:
        """Begin a call, or end one. Raises InvalidRequest for what is none."""
        try:
            call = Call.model_validate_json(text)
        except ValidationError as exc:
            raise models.invalid_fields(exc.errors(include_url=False)) from None
        if call.op == _CANCEL:
            if task := self._running.pop(call.id, None):
                await stop(task)
            return
        if call.id in self._running:
            await self._refuse(call, InvalidRequest(f"id {call.id!r} is of a call that runs"))
        elif len(self._running) >= AT_ONCE:
            full = Capacity(
                f"{AT_ONCE} calls of this connection run; retry in 1 s", retry_after_s=1
            )
            await self._refuse(call, full)
        else:
            task = asyncio.create_task(self._carry_out(call))
            self._running[call.id] = task
            task.add_done_callback(lambda _: self._running.pop(call.id, None))

    async def _carry_out(self, call: Call) -> None:
        try:
            if call.op in _EVENTS:
                await self._send_events(call)
            else:
                await self._answer(call)
        except SandboxError as exc:
            await self._refuse(call, exc)
        except WebSocketDisconnect:
            pass
        except Exception as exc:
            log_failure(exc, request_id=str(call.id))
            await self._refuse(call, Internal("the server failed; its log says why"))

    async def _answer(self, call: Call) -> None:
        operation = _OPERATIONS.get(call.op)
        if operation is None:
            similar = ", ".join(nearest(call.op, _NAMES)) or ", ".join(_NAMES)
            raise InvalidRequest(f"no operation {call.op!r}; there is {similar}")
        answer = await self._sandboxes.call(operation, _request(operation.request, call))
        await self._send(call, answer=answer.model_dump(mode="json"))

    async def _send_events(self, call: Call) -> None:
        events = self._sandboxes.events(_request(_EVENTS[call.op], call))
        async with contextlib.aclosing(events):
            async for event in events:
                await self._send(call, **event.model_dump(mode="json"))

    async def _refuse(self, call: Call, error: SandboxError) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            await self._send(call, error=error_body(error, str(call.id)))

    async def _send(self, call: Call, **fields: Any) -> None:
        await self._socket.send_json({"id": call.id, **fields})


def _request(model: type[Any], call: Call) -> Any:
    """Raises InvalidRequest."""
    try:
        return model.model_validate_json(json.dumps(call.request))
    except ValidationError as exc:
        raise models.invalid_fields(exc.errors(include_url=False)) from None
