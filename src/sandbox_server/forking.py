"""Forking: a checkpoint, and sessions that begin with it, wherever their threads are placed."""

from __future__ import annotations

import asyncio

from sandbox_sdk.protocol.errors import Conflict
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    CreateSessionRequest,
    ForkRequest,
    ForkResult,
    Session,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

AT_ONCE = 8


async def fork(sandboxes: Sandboxes, request: ForkRequest) -> ForkResult:
    """Raises Conflict if one of the threads has a session that did not begin so."""
    checkpoint_id = request.checkpoint_id
    if checkpoint_id is None:
        wanted = checked(
            CheckpointRequest,
            thread_id=request.thread_id,
            name=f"fork of {request.thread_id}",
            idempotency_key=request.idempotency_key,
        )
        checkpoint_id = (await sandboxes.checkpoint(wanted)).checkpoint_id
    slots = asyncio.Semaphore(AT_ONCE)

    async def begin(thread_id: str) -> Session:
        async with slots:
            session = await sandboxes.create_session(
                CreateSessionRequest(thread_id=thread_id, checkpoint_id=checkpoint_id)
            )
        if "checkpoint_id" in session.not_applied:
            raise Conflict(
                f"thread {thread_id!r} has a session already; end it, or choose another thread_id",
                thread_id=thread_id,
            )
        return session

    made = await asyncio.gather(*map(begin, request.into), return_exceptions=True)
    sessions = []
    for each in made:
        if isinstance(each, BaseException):
            raise each  # The others are there: the same call finds them.
        sessions.append(each)
    return ForkResult(checkpoint_id=checkpoint_id, sessions=sessions)
