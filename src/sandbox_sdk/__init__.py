"""Sandboxes for AI agents, in this process or on a server.

    from sandbox_sdk import SandboxClient

    with SandboxClient(thread_id="conv-42") as sandbox:
        print(sandbox.execute("python3 -c 'print(2+2)'").output)

SANDBOX_URL says which server; without it, sandboxes are made by this process (`LocalBackend`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox_sdk.backends.local import LocalBackend, LocalSettings
from sandbox_sdk.batch import AsyncBatchSandboxClient, BatchSandboxClient
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.errors import (
    Capacity,
    CommandFailed,
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
    TransferCorrupted,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.process import AsyncProcess, Process
from sandbox_sdk.protocol.events import (
    CommandEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    CleanupResult,
    CommandInfo,
    CommandList,
    ExecuteResult,
    FileEntry,
    Health,
    Limits,
    ListResult,
    RunningCommand,
    Session,
    SessionInfo,
    SessionList,
    SessionSummary,
    SessionUsage,
    StdinReceipt,
    UploadResult,
    Verdict,
)
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes
from sandbox_sdk.sync import SandboxClient

if TYPE_CHECKING:
    from sandbox_sdk.backends.remote import RemoteBackend

__all__ = [
    "AsyncBatchSandboxClient",
    "AsyncProcess",
    "AsyncSandboxClient",
    "BatchSandboxClient",
    "Capacity",
    "CleanupResult",
    "CommandEvent",
    "CommandFailed",
    "CommandInfo",
    "CommandList",
    "CommandOptions",
    "CommandRejected",
    "DiskFull",
    "Download",
    "ExecuteResult",
    "ExitEvent",
    "FileEntry",
    "FileMissing",
    "FileTooLarge",
    "Forbidden",
    "GapEvent",
    "Health",
    "IdempotencyMismatch",
    "Internal",
    "InvalidPath",
    "InvalidRequest",
    "InvalidThreadId",
    "Limits",
    "ListResult",
    "LocalBackend",
    "LocalSettings",
    "MethodNotAllowed",
    "Misdirected",
    "NotFound",
    "OutputEvent",
    "Process",
    "RateLimited",
    "RemoteBackend",
    "RequestTimeout",
    "RunningCommand",
    "RuntimeUnavailable",
    "SandboxClient",
    "SandboxError",
    "Sandboxes",
    "Session",
    "SessionInfo",
    "SessionList",
    "SessionLost",
    "SessionNotFound",
    "SessionSummary",
    "SessionUsage",
    "StartEvent",
    "StdinClosed",
    "StdinReceipt",
    "TransferCorrupted",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "UploadResult",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    """RemoteBackend when it is asked for: its HTTP library is half the time of an import."""
    if name == "RemoteBackend":
        from sandbox_sdk.backends.remote import RemoteBackend

        return RemoteBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
