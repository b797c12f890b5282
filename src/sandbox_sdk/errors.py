"""Every error this library raises on purpose: those of the wire, and three of the client's own.

SandboxError
├── … every class of sandbox_sdk.protocol.errors
├── CommandFailed        a command ended with an exit code other than 0, and `check` was asked for
├── CodeFailed           code raised, or did not end by itself, and `check` was asked for
└── TransferCorrupted    a file did not arrive as it was sent
"""

from __future__ import annotations

from signal import Signals

from sandbox_sdk.protocol.errors import *  # noqa: F403
from sandbox_sdk.protocol.errors import SandboxError, size_text
from sandbox_sdk.protocol.models import CodeResult, ExecuteResult

_SHOWN = 2000
"""Characters of a failed command's output in the message."""


class CommandFailed(SandboxError, code="command_failed"):
    """A command run with `check=True` exited with something other than 0; see `result`."""

    def __init__(self, result: ExecuteResult, *, memory_bytes: int | None = None) -> None:
        """memory_bytes: the limit of the sandbox, for a command that ran out of memory."""
        output = (result.stderr or result.output).strip()[-_SHOWN:]
        message = f"the command {_ending(result, memory_bytes)}"
        super().__init__(f"{message}: {output}" if output else message)
        self.result = result


def _ending(result: ExecuteResult, memory_bytes: int | None) -> str:
    if result.timed_out:
        return f"timed out after {round(result.duration_ms / 1000, 1):g} s"
    code = result.exit_code or 0
    if result.reason == "oom":
        limit = f" ({size_text(memory_bytes)})" if memory_bytes else ""
        return f"ran out of memory{limit} and was killed"
    if result.signal is not None:
        return f"was killed by SIG{result.signal.removeprefix('SIG')}"
    # As bash reports the end of a program by a signal.
    if code - 128 in set(Signals):
        return f"ended with exit code {code} (128 + {Signals(code - 128).name})"
    return f"ended with exit code {code}"


class CodeFailed(SandboxError, code="code_failed"):
    """Code run with `check=True` raised, or did not end by itself; see `result`."""

    def __init__(self, result: CodeResult) -> None:
        error = result.error
        shown = "\n".join(error.traceback)[-_SHOWN:] if error else ""
        message = f"the code ended with {error.name}: {error.value}" if error else "the code failed"
        super().__init__(f"{message}\n{shown}".strip())
        self.result = result


class TransferCorrupted(SandboxError, code="transfer_corrupted"):
    """A file arrived incomplete or with another checksum. Nothing was written; try again."""
