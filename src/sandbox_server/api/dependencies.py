"""What routes ask for. Coroutines all: FastAPI would call plain functions in a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated

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


async def _sandboxes(request: Request) -> Sandboxes:
    found: Sandboxes = request.app.state.sandboxes
    return found


async def _limits(request: Request) -> ApiLimits:
    found: ApiLimits = request.app.state.limits
    return found


async def _tenant(request: Request) -> str:
    return str(request.state.tenant)


async def _target(thread_id: ThreadIdQuery = None, session_id: SessionIdQuery = None) -> Target:
    return make_target(thread_id=thread_id, session_id=session_id)


async def _open_until_sent() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


Service = Annotated[Sandboxes, Depends(_sandboxes)]
Limits = Annotated[ApiLimits, Depends(_limits)]
Tenant = Annotated[str, Depends(_tenant)]
QueryTarget = Annotated[Target, Depends(_target)]
OpenUntilSent = Annotated[AsyncExitStack, Depends(_open_until_sent)]
"""What is entered here is left when the answer has been sent, or could not be."""
