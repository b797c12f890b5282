"""The two calls that an agent waits for most, past the framework, which would take them half a
millisecond.

Only what is plain and valid goes this way: JSON out, nothing in the query. Everything else
takes the route, which explains what is wrong with it, and gives the same answer to the rest.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox_sdk.backends.base import Sandboxes
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Model
from sandbox_server.api.about import about_command, about_target, about_tenant
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.errors import error_response
from sandbox_server.api.sse import EVENT_STREAM


class _Plain(NamedTuple):
    """A call in two steps: what may find that it is not plain, and what does something."""

    read: Callable[[Any], Any]
    """Raises ValueError."""
    carry_out: Callable[[Any, str], Awaitable[Response]]
    """Takes what was read, and the tenant."""


class Shortcut:
    def __init__(self, app: ASGIApp, *, sandboxes: Sandboxes, keys: ApiKeys) -> None:
        self._app = app
        self._sandboxes = sandboxes
        self._keys = keys
        self._calls = {
            "/execute": _Plain(_command, self._execute),
            "/create_session": _Plain(CreateSessionRequest.model_validate, self._create_session),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._calls.get(scope["path"]) if scope["type"] == "http" else None
        if call is None or not _is_plain(scope):
            await self._app(scope, receive, send)
            return
        taken: list[Message] = []
        try:
            tenant = self._keys.tenant(Headers(scope=scope))
            about_tenant(tenant)
            try:
                request = call.read(json.loads(await _whole(receive, taken)))
            except (ValueError, RecursionError):
                await self._app(scope, _once_more(taken, receive), send)
                return
            about_target(request)
            answer = await call.carry_out(request, tenant)
        except SandboxError as error:
            answer = error_response(error, scope["state"]["request_id"])
        await answer(scope, receive, send)

    async def _execute(self, request: ExecuteRequest, tenant: str) -> Response:
        result = await self._sandboxes.execute(request, tenant=tenant)
        about_command(result.command_id)
        return _json(result, status=200)

    async def _create_session(self, request: CreateSessionRequest, tenant: str) -> Response:
        session = await self._sandboxes.create_session(request, tenant=tenant)
        return _json(session, status=201 if session.status == "created" else 200)


def _is_plain(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return (
        scope["method"] == "POST"
        and not scope["query_string"]
        and EVENT_STREAM not in headers.get("accept", "").lower()
        and "last-event-id" not in headers
    )


def _command(body: Any) -> ExecuteRequest:
    request = ExecuteRequest.model_validate(body)
    if request.dry_run:
        raise ValueError("it is asked about, not run")
    return request


async def _whole(receive: Receive, taken: list[Message]) -> bytes:
    """The body. What has come of it is in `taken`. Raises ValueError for a client that has gone."""
    while not taken or taken[-1].get("more_body"):
        taken.append(await receive())
    if taken[-1]["type"] != "http.request":
        raise ValueError("half of it is missing")
    return b"".join(message.get("body", b"") for message in taken)


def _once_more(taken: list[Message], receive: Receive) -> Receive:
    left = iter(taken)

    async def again() -> Message:
        return next(left, None) or await receive()

    return again


def _json(answer: Model, *, status: int) -> Response:
    return Response(answer.model_dump_json(), status_code=status, media_type="application/json")
