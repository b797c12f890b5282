"""The server's side of a warden: the client, the link below it, and what it may answer."""

from sandbox_server.runtime.warden.client import WardenBox, WardenClient

__all__ = ["WardenBox", "WardenClient"]
