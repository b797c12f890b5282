"""health."""

from __future__ import annotations

from fastapi import Response

from sandbox_sdk.protocol.models import Health
from sandbox_server.api.dependencies import Service


async def health(sandboxes: Service, response: Response) -> Health:
    """How the server is doing. Needs no key."""
    found = await sandboxes.health()
    response.status_code = 503 if found.status == "unhealthy" else 200
    return found
