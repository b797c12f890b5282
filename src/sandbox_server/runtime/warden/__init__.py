"""The server's client of a warden, the link it runs over, and the checks of its answers."""

from sandbox_server.runtime.warden.client import WardenBox, WardenClient

__all__ = ["WardenBox", "WardenClient"]
