"""create_session, session, cleanup, and the list of sessions."""

from __future__ import annotations

from fastapi import Response

from sandbox_sdk.protocol.models import (
    CleanupResult,
    CreateSessionRequest,
    Session,
    SessionInfo,
    SessionList,
    Target,
)
from sandbox_server.api.about import about_target
from sandbox_server.api.dependencies import Asked, QueryTarget


async def create_session(
    asked: Asked,
    response: Response,
    body: CreateSessionRequest | None = None,
) -> Session:
    """The live session of a thread, or a new one. Without a thread_id the session is a thread of
    its own, named like the session."""
    request = body or CreateSessionRequest()
    about_target(request)
    session = await asked.sandboxes.create_session(request, tenant=asked.tenant)
    response.status_code = 201 if session.status == "created" else 200
    return session


async def session(asked: Asked, target: QueryTarget) -> SessionInfo:
    """How a session is doing. Asking does not count as use of it, and never makes one."""
    return await asked.sandboxes.session(target, tenant=asked.tenant)


async def cleanup(asked: Asked, body: Target) -> CleanupResult:
    """End a session: its processes and its files are gone."""
    about_target(body)
    return await asked.sandboxes.cleanup(body, tenant=asked.tenant)


async def sessions(asked: Asked) -> SessionList:
    """The live sessions of whoever asks, oldest first. No box is asked."""
    return await asked.sandboxes.sessions(tenant=asked.tenant)
