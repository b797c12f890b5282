"""The options of a command, and of code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from sandbox_sdk.protocol.models import Context


class CommandOptions(TypedDict, total=False):
    """Options, None where left out:

    timeout: seconds after which the command and everything it has started is ended, at most 3600.
        None is the server's command_timeout, which is 30 unless configured; a command of start()
        has none then. 0 is none, if the operator allows it.
    cwd: where to run it, instead of the directory that the last command ended in.
    env: variables of this command alone.
    stdin: what it reads from stdin, which is empty by default.
    idempotency_key: a second call with the same key gets the result of the first instead of running
        again.
    artifacts: whether files that it makes or changes under /workspace are kept beyond the end of
        the session; the result lists them.
    """

    timeout: float | None
    cwd: str | None
    env: Mapping[str, str] | None
    stdin: str | None
    idempotency_key: str | None
    artifacts: bool | None


class CodeOptions(TypedDict, total=False):
    """Options, None where left out:

    context: where it runs, one of create_context() or its id. None is the default context of the
        language, which is made at its first use.
    timeout: seconds after which the code is interrupted, at most 3600. None is the server's
        command_timeout.
    env: variables of this run alone, in python and bash.
    idempotency_key: a second call with the same key gets the result of the first instead of running
        again.
    artifacts: False not to keep the files that the code makes or changes under /workspace.
    """

    context: str | Context | None
    timeout: float | None
    env: Mapping[str, str] | None
    idempotency_key: str | None
    artifacts: bool | None
