"""Bounds on what browsers can take up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PreviewLimits:
    connections: int = 1000
    """Of all browsers."""
    per_session: int = 100
    """Requests and WebSockets to one session at the same time."""
    per_visitor: int = 250
    """Connections of one address, and requests that are carried out for it."""
    per_visitor_session: int = 64
    """Requests and WebSockets of one address to one session at the same time."""
    head_bytes: int = 64 * 1024
    """Of a request or a response; many servers take less."""
    head_s: float = 20.0
    """For the first head of a connection to arrive."""
    keep_alive_s: float = 75.0
    """For every following one."""
    stalled_s: float = 120.0
    """A body of which no byte comes or goes for so long is given up."""
    box_idle_s: float = 4.0
    """How long a connection to a box waits for its next request: below the 5 s after which many
    servers close theirs."""
    box_idle: int = 16
    """Such connections to one port."""
    look_again_s: float = 2.0
    """How often what is open is looked at, for previews that have ended."""
