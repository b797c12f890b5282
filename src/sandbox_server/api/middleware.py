"""Middleware: request ids, spans and request log, limits on bodies."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from urllib.parse import quote

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox_sdk.protocol import errors
from sandbox_sdk.tracing import Span
from sandbox_server import log_fields
from sandbox_server.api.errors import error_response, log_failure
from sandbox_server.api.headers import announced_bytes, header, is_form
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.spans import begin_request, set_answer
from sandbox_server.metrics.recorder import NO_METRICS, Metrics

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
MAX_LOGGED_PATH = 200
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

ROUTE = "sandbox.route"
"""In the scope of a request: the path of its route, where no router has looked for it."""
NO_ROUTE = "none"

LARGEST_PIECE = 1 << 20
"""More than a server hands over of a body at once."""


class RequestLog:
    """Gives each request an id, a span and a log line, and turns exceptions into errors."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics = NO_METRICS) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = request_id(header(scope, b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = given
        with begin_request(scope) as span:
            traced = {"trace_id": span.trace_id} if span.trace_id else {}
            bound = log_fields.begin(request_id=given, **traced)
            try:
                await self._logged(scope, receive, send, span)
            finally:
                log_fields.end(bound)

    async def _logged(self, scope: Scope, receive: Receive, send: Send, span: Span) -> None:
        started, answer = time.perf_counter(), _Answer(scope["state"]["request_id"], send)
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:  # The server stops, and the drain timeout is over.
            if answer.status is not None:
                raise
            stopping = errors.RuntimeUnavailable(
                "the server is about to stop; try again", stopping=True
            )
            await answer.fail(stopping, scope, receive)
        except Exception as error:
            log_failure(error, request_id=answer.request_id)
            broken = errors.Internal(
                f"internal error; try again, and report request_id {answer.request_id}"
            )
            await answer.fail(broken, scope, receive)
        finally:
            took_s = time.perf_counter() - started
            log.info(
                "request",
                method=scope["method"],
                path=_loggable(scope["path"][:MAX_LOGGED_PATH]),
                status=answer.status,
                duration_ms=round(took_s * 1000, 1),
            )
            route = _template(scope)
            known = None if route == NO_ROUTE else route
            set_answer(span, scope, route=known, status=answer.status)
            self._metrics.request(scope["method"], route, answer.status, took_s)


def _template(scope: Scope) -> str:
    """The path of the route as it is declared: those that callers send are without bounds."""
    known: str | None = scope.get(ROUTE)
    return known or getattr(scope.get("route"), "path", None) or NO_ROUTE


@functools.lru_cache(maxsize=64)
def _loggable(path: str) -> str:
    """Remembered: most requests are for one of few paths."""
    return quote(path)[:MAX_LOGGED_PATH]


def request_id(given: bytes) -> str:
    """The caller's X-Request-ID if it is safe to log, else a new id."""
    return given.decode() if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()


class _Answer:
    def __init__(self, request_id: str, send: Send) -> None:
        self.request_id = request_id
        self.status: int | None = None
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self.request_id.encode())
            message["headers"] = [*message.get("headers", ()), own]
        await self._send(message)

    async def fail(self, error: errors.SandboxError, scope: Scope, receive: Receive) -> None:
        """Send the error, unless the answer has begun: that is left incomplete, so that the client
        notices."""
        if self.status is None:
            await error_response(error, self.request_id)(scope, receive, self.send)


WHOLE = "body_is_whole"
"""Set in the state of a request by a server that has received all of its body: no timer is needed
to wait for it."""


class BodyLimit:
    """Limits the size of request bodies, and the time to send them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: ApiLimits,
        uploads: frozenset[str],
        or_json: frozenset[str] = frozenset(),
        streams: frozenset[str] = frozenset(),
    ) -> None:
        """uploads: paths that take a file. or_json: those that take it in JSON too, which may not
        be larger than other JSON. streams: those whose body comes as it is made; their routes
        limit its messages."""
        self._streams = streams
        self._app = app
        self._limits = limits
        self._uploads = uploads
        self._or_json = or_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bounded = scope["type"] == "http" and scope["method"] in WITH_BODY
        if bounded and scope["path"] not in self._streams:
            limit = self._limits.json_bytes
            announced = announced_bytes(scope)
            if self._is_upload(scope):
                # The route checks first, also what is announced: it can name the file.
                limit = self._limits.upload_bytes + self._limits.form_bytes + LARGEST_PIECE
                announced = 0
            body = _Body(receive, self._limits, limit=limit, announced=announced)
            receive = body.receive_at_once if scope["state"].get(WHOLE) else body.receive
        await self._app(scope, receive, send)

    def _is_upload(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in self._uploads or (path in self._or_json and is_form(scope))


class _Body:
    def __init__(self, receive: Receive, limits: ApiLimits, *, limit: int, announced: int) -> None:
        self._receive = receive
        self._limits = limits
        self._limit = limit
        self._announced = announced
        self._bytes = 0
        self._waited_s = 0.0
        self._whole = False

    async def receive_at_once(self) -> Message:
        """receive() for a body that is here already. Raises FileTooLarge."""
        self._check(self._announced)
        message = await self._receive()
        self._check(len(message.get("body", b"")))
        return message

    async def receive(self) -> Message:
        """Raises FileTooLarge and RequestTimeout."""
        if self._whole:
            return await self._receive()
        self._check(self._announced)
        message = await self._within(self._left_s())
        self._bytes += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        self._check(self._bytes)
        return message

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise errors.FileTooLarge(
                f"the body of this request has more than {self._limit} bytes; send large data with"
                " upload_file, and input of a command in several pieces",
                limit_bytes=self._limit,
            )

    def _left_s(self) -> float:
        earned_s = self._bytes / self._limits.body_bytes_per_s
        return self._limits.body_timeout_s + earned_s - self._waited_s

    async def _within(self, seconds: float) -> Message:
        # Only waiting for the client counts, not the time a box takes to store the data.
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await self._receive()
        except TimeoutError:
            rate = self._limits.body_bytes_per_s
            raise errors.RequestTimeout(
                f"the body is too slow: {self._bytes} bytes so far, at least {rate} a second are"
                f" required after the first {self._limits.body_timeout_s:g} s; send it again"
            ) from None
        finally:
            self._waited_s += time.monotonic() - started
