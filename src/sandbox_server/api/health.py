"""health."""

from __future__ import annotations

from fastapi import Request, Response

from sandbox_sdk.protocol.models import Health


async def health(request: Request, response: Response) -> Health:
    """How the server is doing. Needs no key."""
    found: Health = await request.app.state.sandboxes.health()
    if found.status == "unhealthy":
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return found
