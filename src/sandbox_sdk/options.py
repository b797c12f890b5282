"""The options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class CommandOptions(TypedDict, total=False):
    """Keyword arguments of execute, stream and start."""

    timeout: float | None
    """Seconds after which the command and everything it has started is ended, at most 3600. None,
    the default, is the server's command_timeout, which is 30 unless configured. A command of
    start() has none unless given."""
    cwd: str
    """Where to run it, instead of the directory that the last command ended in."""
    env: Mapping[str, str]
    """Variables of this command alone."""
    stdin: str
    """What it reads from stdin, which is empty by default."""
    idempotency_key: str
    """A second call with the same key gets the result of the first instead of running again."""
