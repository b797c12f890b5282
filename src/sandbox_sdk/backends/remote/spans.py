"""Spans of the calls to a server, by the semantic conventions of HTTP clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import Request
from sandbox_sdk.tracing import NO_SPAN, Span, begin

_TARGET = ("thread_id", "session_id", "command_id")


def begin_call(
    name: str, place: dict[str, str | int], method: str, path: str, request: Request, *, root: bool
) -> Span:
    """place: server.address and server.port. path: as it is declared, without what callers put in.
    root: see begin()."""
    attributes = {"http.request.method": method, "url.template": path, **place}
    span = begin(f"sandbox.{name}", "client", attributes=attributes, root=root)
    if span is not NO_SPAN:
        for field in _TARGET:
            span.set(f"sandbox.{field}", getattr(request, field, None))
    return span


@contextlib.asynccontextmanager
async def ending(span: Span) -> AsyncIterator[None]:
    """Ends the span of a stream, a download or a connection. A failure of whoever uses that is none
    of the call."""
    try:
        yield
    except SandboxError as error:
        span.fail(error.code)
        raise
    finally:
        span.end()
