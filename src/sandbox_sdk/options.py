"""What may be said about a command besides its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class CommandOptions(TypedDict, total=False):
    """Keyword arguments of execute, stream and start."""

    timeout: float | None
    """Seconds after which everything the command has started is ended, an hour at most. None is as
    the server is set up, 30 unless told, and holds where nothing is said; for a command in the
    background that is an hour."""
    cwd: str
    """Where to run it, instead of where the last command left off."""
    env: Mapping[str, str]
    """Variables of this command alone."""
    stdin: str
    """What it reads; nothing, unless told."""
    idempotency_key: str
    """A second call with the same key joins the first instead of running again."""
