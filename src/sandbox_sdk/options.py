"""The options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class CommandOptions(TypedDict, total=False):
    """Options, None where left out:

    timeout: seconds after which the command and everything it has started is ended, at most 3600.
        None is the server's command_timeout, which is 30 unless configured; a command of start()
        has none then.
    cwd: where to run it, instead of the directory that the last command ended in.
    env: variables of this command alone.
    stdin: what it reads from stdin, which is empty by default.
    idempotency_key: a second call with the same key gets the result of the first instead of running
        again.
    """

    timeout: float | None
    cwd: str | None
    env: Mapping[str, str] | None
    stdin: str | None
    idempotency_key: str | None
