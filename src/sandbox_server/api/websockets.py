"""WebSockets: who may open one, how errors end it, and how many there may be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import structlog
from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sandbox_sdk import tracing
from sandbox_sdk.protocol.errors import Forbidden, Internal, SandboxError, Unauthorized
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server import log_fields
from sandbox_server.api.errors import clipped, error_body, error_response, log_failure, no_route
from sandbox_server.api.origin import AllowedHosts, refusal
from sandbox_server.api.route import Served
from sandbox_server.api.spans import begin_request, note_tenant, set_answer
from sandbox_server.api.websocket_protocol import LOST

log = structlog.get_logger(__name__)

PROTOCOL = "sandbox.v1"
KEY_PROTOCOL = "sandbox.key."
"""How a page sends its API key, which cannot set headers: a second protocol, with the key in
base64url without padding."""
CLOSE_ERROR = 4000
"""To which the HTTP status of an error is added."""

Handler = Callable[[WebSocket, Sandboxes], Awaitable[None]]
"""Accepts the WebSocket, and serves it. An error before that is told as any other."""


def socket_route(
    path: str, handler: Handler, *, served: Served, hosts: AllowedHosts
) -> WebSocketRoute:
    """hosts: those that a server without keys may be called by."""

    async def endpoint(socket: WebSocket) -> None:
        request_id, began = uuid4().hex, time.monotonic()
        try:
            _check_origin(socket, None if served.keys.required else hosts)
            caller = served.keys.caller(_headers(socket), "use")
        except SandboxError as exc:
            await socket.send_denial_response(error_response(exc, request_id))
            return
        with begin_request(socket.scope) as span:
            set_answer(span, socket.scope, route=path, status=101)
            note_tenant(caller.tenant)
            traced = {"trace_id": span.trace_id} if span.trace_id else {}
            bound = log_fields.begin(
                request_id=request_id, tenant=caller.tenant, path=path, **traced
            )
            if caller.key_id:
                log_fields.bind(key=caller.key_id)
            try:
                await _handled(socket, handler(socket, served.of(caller)), request_id)
                log.info("websocket.closed", duration_s=round(time.monotonic() - began, 1))
            finally:
                log_fields.end(bound)

    return WebSocketRoute(path, endpoint)


def no_socket_route() -> WebSocketRoute:
    """For every other path."""

    async def endpoint(socket: WebSocket) -> None:
        missing = no_route(f"a WebSocket at {clipped(socket.url.path)}")
        await socket.send_denial_response(error_response(missing, uuid4().hex))

    return WebSocketRoute("/{path:path}", endpoint)


async def accept(socket: WebSocket) -> None:
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
    log.info("websocket.opened")


async def received(socket: WebSocket) -> Message:
    """The next message. Raises WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code") or 1000)
    return message


async def _handled(socket: WebSocket, handling: Awaitable[None], request_id: str) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        try:
            await handling
            await socket.close()
        except SandboxError as exc:
            await _end(socket, exc, request_id)
        except WebSocketDisconnect:
            raise
        except Exception as exc:
            log_failure(exc, request_id=request_id)
            await _end(socket, Internal("the server failed; its log says why"), request_id)


async def _end(socket: WebSocket, error: SandboxError, request_id: str) -> None:
    """Tell an error, and close with it."""
    tracing.current().fail(error.code)
    if socket.application_state is WebSocketState.CONNECTING:
        await accept(socket)
    await socket.send_json({"type": "error", "error": error_body(error, request_id)})
    await socket.close(CLOSE_ERROR + error.status, error.code)


def _check_origin(socket: WebSocket, hosts: AllowedHosts | None) -> None:
    """Pages of other sites are refused, with keys too: a browser asks nobody before it opens a
    WebSocket. Raises Forbidden."""
    if why := refusal(socket.scope, hosts or AllowedHosts(more=["*"])):
        raise Forbidden(why.replace("a server without keys", "this server"))


def _headers(socket: WebSocket) -> Headers:
    """With the key, where it is among the protocols. Raises Unauthorized."""
    offered = [
        each for each in socket.scope.get("subprotocols", []) if each.startswith(KEY_PROTOCOL)
    ]
    if not offered:
        return socket.headers
    text = offered[0].removeprefix(KEY_PROTOCOL)
    try:
        key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise Unauthorized(f"the key after {KEY_PROTOCOL} is not base64url") from None
    return Headers(raw=[*socket.headers.raw, (b"x-api-key", key)])


def lost(socket: WebSocket) -> asyncio.Event:
    """Set once the connection is lost, for a handler that is not receiving just then."""
    found: asyncio.Event = socket.scope.get("extensions", {}).get(LOST) or asyncio.Event()
    return found
