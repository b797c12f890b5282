"""Spans of requests, by the semantic conventions of HTTP servers."""

from __future__ import annotations

from starlette.types import Scope

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.tracing import NO_SPAN, Span, begin, current, is_on
from sandbox_server.api.headers import header

_METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
_ASKED_ALL_THE_TIME = frozenset({"/health", "/metrics"})
_W3C = (b"traceparent", b"tracestate")


def begin_request(scope: Scope) -> Span:
    """Below the span of the caller, if it sent one. Who asks whether the server is well gets a span
    only then: there would be more of those than of all others."""
    if not is_on():
        return NO_SPAN
    given = {name.decode(): header(scope, name).decode("latin-1") for name in _W3C}
    if scope["path"] in _ASKED_ALL_THE_TIME and not given["traceparent"]:
        return NO_SPAN
    span = begin(_method_name(scope), "server", caller=given)
    if span is not NO_SPAN:
        method = scope.get("method", "GET")
        span.set("http.request.method", method if method in _METHODS else "_OTHER")
        span.set("url.scheme", scope.get("scheme", "http"))
        span.set("network.protocol.version", scope.get("http_version"))
        address, port = scope.get("server") or (None, None)
        span.set("server.address", address)
        span.set("server.port", port)
    return span


def set_answer(span: Span, scope: Scope, *, route: str | None, status: int | None) -> None:
    """By the conventions, a mistake of the caller (4xx) is no failure of the server; its error.type
    is set all the same. Not the path: callers may put anything there."""
    if route is not None:
        span.rename(f"{_method_name(scope)} {route}")
    span.set("http.route", route)
    span.set("http.response.status_code", status)
    if status is not None and status >= 500:
        span.fail(scope.get("state", {}).get(_CODE, str(status)))


_CODE = "error_code"


def note_error(scope: Scope, error: SandboxError) -> None:
    """An answer that is an error."""
    scope.setdefault("state", {})[_CODE] = error.code
    current().set("error.type", error.code)


def note_tenant(tenant: str) -> None:
    current().set("sandbox.tenant", tenant)


def _method_name(scope: Scope) -> str:
    method: str = scope.get("method", "GET")
    return method if method in _METHODS else "HTTP"
