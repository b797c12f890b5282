"""Sandboxes for AI agents, in this process or on a server.

    from sandbox_sdk import SandboxClient

    with SandboxClient(thread_id="conv-42") as sandbox:
        print(sandbox.execute("python3 -c 'print(2+2)'").output)

SANDBOX_URL names the server; without it, this process makes the sandboxes itself (`LocalBackend`).
"""

# ruff: noqa: F405 - the errors of __all__ come with the star; a test looks each of them up.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox_sdk.artifacts import ArtifactFile, AsyncArtifactFile
from sandbox_sdk.backends.local import LocalBackend, LocalSettings
from sandbox_sdk.batch import AsyncBatchSandboxClient, BatchSandboxClient
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.errors import *  # noqa: F403
from sandbox_sdk.mounts.changes import MountChange, MountChanges
from sandbox_sdk.options import CodeOptions, CommandOptions
from sandbox_sdk.ports import BlockingChannel, Forward
from sandbox_sdk.process import AsyncProcess, Process
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.events import (
    CodeErrorEvent,
    CodeEvent,
    CommandEvent,
    EndEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    AgentEntry,
    AgentInfo,
    Artifact,
    ArtifactProblem,
    ChangedPaths,
    Checkpoint,
    CheckpointList,
    CleanupResult,
    CodeError,
    CodeResult,
    CommandChanges,
    CommandInfo,
    CommandList,
    Context,
    EgressOptions,
    EgressRules,
    EgressUsage,
    EnvironmentEntry,
    ExecuteResult,
    FileChange,
    FileChangeList,
    FileEntry,
    FileWatch,
    ForkResult,
    Happening,
    HappeningList,
    Health,
    HistoryEntry,
    Limits,
    LinkEnd,
    ListResult,
    MkdirResult,
    OpenPorts,
    PathChanged,
    PortOptions,
    Preview,
    PreviewList,
    RegistryList,
    Result,
    Resumed,
    RunningCommand,
    Session,
    SessionInfo,
    SessionList,
    SessionSummary,
    SessionUsage,
    StdinReceipt,
    ThreadHistory,
    ToolAnswer,
    ToolInfo,
    Undone,
    UploadResult,
    UsageReport,
    UsageRow,
    Verdict,
    Volume,
    VolumeList,
    VolumeOptions,
)
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes
from sandbox_sdk.sync import SandboxClient

if TYPE_CHECKING:
    from sandbox_sdk.backends.remote import RemoteBackend

__all__ = [
    "AgentEntry", "AgentInfo", "Artifact", "ArtifactFile", "ArtifactProblem", "AsyncArtifactFile",
    "AsyncBatchSandboxClient", "AsyncProcess", "AsyncSandboxClient", "AuditUnavailable",
    "BatchSandboxClient", "BlockingChannel", "ByteChannel", "Capacity", "ChangedPaths",
    "Checkpoint", "CheckpointDamaged", "CheckpointList", "CheckpointNotFound", "CleanupResult",
    "CodeError", "CodeErrorEvent", "CodeEvent", "CodeFailed", "CodeOptions", "CodeResult",
    "CommandChanges", "CommandEvent", "CommandFailed", "CommandInfo", "CommandList",
    "CommandOptions", "CommandRejected", "Conflict", "Context", "ContextLost", "ContextNotFound",
    "DiskFull", "Download", "EgressOptions", "EgressRules", "EgressUsage", "EndEvent",
    "EnvironmentBuilding", "EnvironmentEntry", "EnvironmentFailed", "ExecuteResult", "ExitEvent",
    "FileChange", "FileChangeList", "FileEntry", "FileMissing", "FileTooLarge", "FileWatch",
    "Forbidden", "ForkResult", "Forward", "GapEvent", "Happening", "HappeningList", "Health",
    "HistoryEntry", "IdempotencyMismatch", "Internal", "InvalidPath", "InvalidRequest",
    "InvalidThreadId", "KernelFailed", "KernelMissing", "Limits", "LinkEnd", "ListResult",
    "LocalBackend", "LocalSettings", "MethodNotAllowed", "Misdirected", "MkdirResult",
    "MountChange", "MountChanges", "NotFound", "NotListening", "OpenPorts", "OutputEvent",
    "PathChanged", "PortOptions", "Preview", "PreviewList", "Process", "RateLimited",
    "RegistryList", "RemoteBackend", "RequestTimeout", "Result", "ResultEvent", "Resumed",
    "RunningCommand", "RuntimeUnavailable", "SandboxClient", "SandboxError", "Sandboxes", "Session",
    "SessionInfo", "SessionList", "SessionLost", "SessionNotFound", "SessionSummary",
    "SessionUsage", "StartEvent", "StdinClosed", "StdinReceipt", "ThreadHistory", "ToolAnswer",
    "ToolInfo", "TransferCorrupted", "Unauthorized", "Unavailable", "Undone", "Unreachable",
    "UploadResult", "UsageReport", "UsageRow", "Verdict", "Volume", "VolumeList", "VolumeNotFound",
    "VolumeOptions",
]  # fmt: skip


def __dir__() -> list[str]:
    """What is meant for users, without modules and imports."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import RemoteBackend on first use: half of an import's time is its HTTP library."""
    if name == "RemoteBackend":
        from sandbox_sdk.backends.remote import RemoteBackend

        return RemoteBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
