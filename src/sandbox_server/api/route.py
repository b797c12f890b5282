"""Routes that FastAPI only documents. Parsing and serialization are ours: FastAPI's would take
longer than most commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from sandbox_sdk import tracing
from sandbox_sdk.protocol import calling_key
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import CreateSessionRequest, Target
from sandbox_sdk.protocol.models import Request as RequestModel
from sandbox_sdk.protocol.sandboxes import Sandboxes, Tenants
from sandbox_server import log_fields
from sandbox_server.access.keys import Caller
from sandbox_server.access.keys import Scope as KeyScope
from sandbox_server.access.limited import Admission, LimitedSandboxes
from sandbox_server.api.auth import SCHEMES, ApiKeys
from sandbox_server.api.errors import ClientGone, error_response
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.spans import note_tenant


@dataclass(frozen=True, slots=True)
class Served:
    """What all routes of an app share."""

    tenants: Tenants
    keys: ApiKeys
    limits: ApiLimits
    admission: Admission | None = None
    """Of callers that have limits."""

    def of(self, caller: Caller) -> Sandboxes:
        """For a call that is carried out in this task."""
        calling_key.begin(caller.key_id)
        sandboxes = self.tenants.of(caller.tenant)
        return sandboxes if self.admission is None else self.admission.limited(sandboxes, caller)

    def asked(self, http: Request, caller: Caller) -> Asked:
        """A request of a caller, whom its log lines name from here on."""
        log_fields.bind(tenant=caller.tenant)
        if caller.key_id:
            log_fields.bind(key=caller.key_id)
        return Asked(http, caller, self.of(caller), self.limits)

    def of_headers(self, headers: Headers) -> tuple[str, str, Sandboxes]:
        """The tenant, key and sandboxes of whoever sends them. Raises Unauthorized, Forbidden."""
        caller = self.keys.caller(headers, "use")
        return caller.tenant, caller.key_id, self.of(caller)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and the sandboxes of its tenant."""

    http: Request
    caller: Caller
    sandboxes: Sandboxes
    limits: ApiLimits

    @property
    def request_id(self) -> str:
        return str(self.http.scope["state"]["request_id"])

    def with_limits(self, answer: Response) -> Response:
        """The answer with headers that say how much its caller may still ask for."""
        if isinstance(self.sandboxes, LimitedSandboxes):
            answer.headers.update(self.sandboxes.headers)
        return answer

    async def body(self) -> bytes:
        """The whole body. Raises ClientDisconnect."""
        pieces = []
        while True:
            message = await self.http.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(pieces)


Handler = Callable[[Asked], Awaitable[Response]]


class PublicRoute(Route):
    """A route without authentication. described: a function whose signature the OpenAPI document
    shows; never called. more: about the route, for that document."""

    def __init__(
        self,
        path: str,
        handler: Callable[..., Awaitable[Response]],
        *,
        described: Callable[..., Any],
        methods: Sequence[str] = ("GET",),
        include_in_schema: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(path, described, include_in_schema=include_in_schema)
        self.methods = set(methods)  # Starlette would add HEAD to GET.
        self._handler = handler
        self._more = more
        self.app = self._serve

    def documented(self) -> APIRoute:
        """The route as FastAPI documents it. Only when asked for: to make all of them takes as long
        as the rest of a server's start."""
        methods, shown = self.methods, self.include_in_schema
        return APIRoute(
            self.path, self.endpoint, methods=methods, include_in_schema=shown, **self._more
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self} if match != Match.NONE else found

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(Request(scope, receive))
        except SandboxError as error:
            answer = self._refusal(error, scope["state"]["request_id"])
        except ClientDisconnect:
            gone = ClientGone("the client disconnected")
            answer = self._refusal(gone, scope["state"]["request_id"])
        await answer(scope, receive, send)

    def _refusal(self, error: SandboxError, request_id: str) -> Response:
        return error_response(error, request_id)

    async def _answer(self, http: Request) -> Response:
        return await self._handler(http)


class KeyedRoute(PublicRoute):
    """A route that checks the API key, before it reads the body."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        *,
        served: Served,
        scope: KeyScope = "use",
        openapi_extra: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        security: list[dict[str, list[str]]] = [{scheme: []} for scheme in SCHEMES]
        extra = {**(openapi_extra or {}), "security": security}
        super().__init__(path, handler, openapi_extra=extra, **more)
        self._served = served
        self._scope = scope

    async def _answer(self, http: Request) -> Response:
        caller = self._served.keys.caller(http.headers, self._scope)
        note_tenant(caller.tenant)
        asked = self._served.asked(http, caller)
        return asked.with_limits(await self._handler(asked))


def bind_target(request: RequestModel) -> None:
    """Bind the thread or session of a request to its log lines."""
    if isinstance(request, Target | CreateSessionRequest) and request.thread_id is not None:
        log_fields.bind(thread=request.thread_id)
        tracing.current().set("sandbox.thread_id", request.thread_id)
    elif isinstance(request, Target):
        log_fields.bind(session=request.session_id)
        tracing.current().set("sandbox.session_id", request.session_id)
