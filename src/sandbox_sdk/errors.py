"""Every error this library raises on purpose: those of the wire, and two of the client's own.

SandboxError
├── … every class of sandbox_sdk.protocol.errors
├── CommandFailed        a command ended with an exit code other than 0, and `check` was asked for
└── TransferCorrupted    a file did not arrive as it was sent
"""

from __future__ import annotations

from sandbox_sdk.protocol.errors import (
    Capacity,
    CommandRejected,
    DiskFull,
    FileMissing,
    FileTooLarge,
    Forbidden,
    IdempotencyMismatch,
    Internal,
    InvalidPath,
    InvalidRequest,
    InvalidThreadId,
    MethodNotAllowed,
    Misdirected,
    NotFound,
    RateLimited,
    RequestTimeout,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
    SessionNotFound,
    StdinClosed,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from sandbox_sdk.protocol.models import ExecuteResult

__all__ = [
    "Capacity",
    "CommandFailed",
    "CommandRejected",
    "DiskFull",
    "FileMissing",
    "FileTooLarge",
    "Forbidden",
    "IdempotencyMismatch",
    "Internal",
    "InvalidPath",
    "InvalidRequest",
    "InvalidThreadId",
    "MethodNotAllowed",
    "Misdirected",
    "NotFound",
    "RateLimited",
    "RequestTimeout",
    "RuntimeUnavailable",
    "SandboxError",
    "SessionLost",
    "SessionNotFound",
    "StdinClosed",
    "TransferCorrupted",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
]

_SHOWN = 2000


class CommandFailed(SandboxError):
    """A command that was run with `check=True` did not exit with 0. `result` tells the rest."""

    code = "command_failed"

    def __init__(self, result: ExecuteResult) -> None:
        said = (result.stderr or result.output).strip()[-_SHOWN:]
        message = f"the command ended with exit code {result.exit_code}"
        super().__init__(f"{message}: {said}" if said else message)
        self.result = result


class TransferCorrupted(SandboxError):
    """What arrived is not what was sent. Nothing was kept of it; try again."""

    code = "transfer_corrupted"
