"""health."""

from __future__ import annotations

from fastapi import Request, Response

from sandbox_sdk.protocol.models import Health


async def health(request: Request, response: Response) -> Health:
    """How the server is doing. Needs no key."""
    found: Health = await request.app.state.sandboxes.health()
    response.status_code = 503 if found.status == "unhealthy" else 200
    return found
