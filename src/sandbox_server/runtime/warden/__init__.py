"""The server's side of a warden: the client, the link below it, and what it may answer."""

from sandbox_server.runtime.warden.client import WardenClient
from sandbox_server.runtime.warden.events import (
    CommandResult,
    Event,
    Exited,
    Gap,
    Output,
    Started,
)
from sandbox_server.runtime.warden.files import Download

__all__ = [
    "CommandResult",
    "Download",
    "Event",
    "Exited",
    "Gap",
    "Output",
    "Started",
    "WardenClient",
]
