"""What every line in the log of a request says about it, from where it is known on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from structlog.contextvars import bind_contextvars, bound_contextvars, unbind_contextvars

from sandbox_sdk.protocol.models import CreateSessionRequest, Target


@contextmanager
def about_request(request_id: str) -> Iterator[None]:
    with bound_contextvars(request_id=request_id):
        try:
            yield
        finally:
            unbind_contextvars("tenant", "thread", "session", "command_id")


def about_tenant(tenant: str) -> None:
    bind_contextvars(tenant=tenant)


def about_target(target: Target | CreateSessionRequest) -> None:
    if target.thread_id is not None:
        bind_contextvars(thread=target.thread_id)
    elif isinstance(target, Target):
        bind_contextvars(session=target.session_id)


def about_command(command_id: str) -> None:
    bind_contextvars(command_id=command_id)
