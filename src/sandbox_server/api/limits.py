"""Limits on what a client may use while it sends a request."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class ApiLimits:
    connections: int = 4096
    """At most this many at once; further ones are refused with a retry time."""

    idle_connections: int = 1024
    """At most this many of them without a request; the longest idle one is closed first."""

    header_bytes: int = 64 * KIB
    header_timeout_s: float = 10.0
    """Time from a request's first byte, or from the start of a connection, to the end of the
    header."""

    json_bytes: int = 2 * MIB
    """The largest body of a call other than upload_file."""

    upload_bytes: int = 100 * MIB
    """The largest file."""

    form_bytes: int = 64 * KIB
    """Size of a form besides its file: boundaries, headers and fields."""

    body_timeout_s: float = 30.0
    body_bytes_per_s: int = 16 * KIB
    """Time to wait for a body: body_timeout_s, plus a second per body_bytes_per_s received."""

    keep_alive_s: float = 15.0
    """A keep-alive comment is sent after this long without an event."""
