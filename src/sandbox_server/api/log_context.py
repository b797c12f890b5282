"""Log fields bound to the current request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from structlog.contextvars import bind_contextvars, bound_contextvars, unbind_contextvars

from sandbox_sdk.protocol.models import CreateSessionRequest, Request, Target


@contextmanager
def request_context(request_id: str) -> Iterator[None]:
    with bound_contextvars(request_id=request_id):
        try:
            yield
        finally:
            unbind_contextvars("tenant", "thread", "session", "command_id")


def bind_tenant(tenant: str) -> None:
    bind_contextvars(tenant=tenant)


def bind_target(request: Request) -> None:
    """Whose sandbox a request means, where it means one."""
    if isinstance(request, Target | CreateSessionRequest) and request.thread_id is not None:
        bind_contextvars(thread=request.thread_id)
    elif isinstance(request, Target):
        bind_contextvars(session=request.session_id)


def bind_command(command_id: str) -> None:
    bind_contextvars(command_id=command_id)
