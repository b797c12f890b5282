"""What routes ask for. Coroutines all: FastAPI would call plain functions in a thread."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Query, Request

from sandbox_sdk.backends.base import Sandboxes
from sandbox_sdk.protocol.models import Target, ThreadId
from sandbox_server.api.errors import make_target
from sandbox_server.api.limits import ApiLimits

ThreadIdQuery = Annotated[
    ThreadId | None,
    Query(description="The conversation, chosen by the caller.", examples=["conv-42"]),
]
SessionIdQuery = Annotated[
    str | None,
    Query(max_length=128, description="One life of a thread's sandbox, named by the server."),
]


class _Asked(NamedTuple):
    sandboxes: Sandboxes
    tenant: str
    limits: ApiLimits


async def _asked(request: Request) -> _Asked:
    state = request.app.state
    return _Asked(state.sandboxes, request.state.tenant, state.limits)


async def _target(thread_id: ThreadIdQuery = None, session_id: SessionIdQuery = None) -> Target:
    return make_target(thread_id=thread_id, session_id=session_id)


Asked = Annotated[_Asked, Depends(_asked)]
"""Who is asked, and for whom. One dependency: each costs a call some 40 µs."""
QueryTarget = Annotated[Target, Depends(_target)]
