"""The client of the first version, under its old name: `from sandbox_client import SandboxClient`.

Its server listened on port 5000 of this machine unless told otherwise. Use sandbox_sdk in new code.
"""

from __future__ import annotations

import os
from typing import Any

from sandbox_sdk import SandboxClient as _SandboxClient
from sandbox_sdk.protocol.models import Health

DEFAULT_URL = "http://localhost:5000"

__all__ = ["SandboxClient"]


class SandboxClient(_SandboxClient):
    """A sandbox of its own on a server, which ends with the client."""

    def __init__(self, server_url: str | None = None, **options: Any) -> None:
        url = server_url or os.environ.get("SANDBOX_URL") or DEFAULT_URL
        super().__init__(server_url=url, **options)

    @property
    def session_id(self) -> str | None:
        """Of the session, once it is made: a thread of its own is named like its session."""
        return self.thread_id

    def health_check(self) -> Health:
        """The state of the server."""
        return self.health()
