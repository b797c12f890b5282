"""What a client may take of the server while it sends a request."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class ApiLimits:
    connections: int = 4096
    """As many at once. More are told to come back."""

    idle_connections: int = 1024
    """Of these, as many without a request. The one that waits longest makes room for another."""

    header_bytes: int = 64 * KIB
    header_timeout_s: float = 10.0
    """How long a request may take from its first byte, and a new connection until its first
    request, to the end of the header."""

    json_bytes: int = 2 * MIB
    """The largest body of a call other than upload_file."""

    upload_bytes: int = 100 * MIB
    """The largest file."""

    form_bytes: int = 64 * KIB
    """What a form may add to the file it carries: boundaries, headers and fields."""

    body_timeout_s: float = 30.0
    body_bytes_per_s: int = 16 * KIB
    """A body is waited for this long, and a second longer for every so many bytes that came."""

    keep_alive_s: float = 15.0
    """A stream of events is never silent for longer."""
