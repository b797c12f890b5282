"""Every error this library raises on purpose: those of the wire, and two of the client's own.

SandboxError
├── … every class of sandbox_sdk.protocol.errors
├── CommandFailed        a command ended with an exit code other than 0, and `check` was asked for
└── TransferCorrupted    a file did not arrive as it was sent
"""

from __future__ import annotations

from sandbox_sdk.protocol.errors import *  # noqa: F403
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import ExecuteResult

_SHOWN = 2000
"""Characters of a failed command's output in the message."""


class CommandFailed(SandboxError):
    """A command run with `check=True` exited with something other than 0; see `result`."""

    code = "command_failed"

    def __init__(self, result: ExecuteResult) -> None:
        output = (result.stderr or result.output).strip()[-_SHOWN:]
        message = f"the command ended with exit code {result.exit_code}"
        super().__init__(f"{message}: {output}" if output else message)
        self.result = result


class TransferCorrupted(SandboxError):
    """A file arrived incomplete or with another checksum. Nothing was written; try again."""

    code = "transfer_corrupted"
