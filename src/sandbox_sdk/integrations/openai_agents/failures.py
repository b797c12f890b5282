"""Turns errors of sandboxes into those of the OpenAI Agents SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agents.sandbox import errors
from agents.sandbox.types import User

from sandbox_sdk.errors import CheckpointNotFound, FileMissing, SandboxError, Unavailable
from sandbox_sdk.protocol.models import USER

PLACE = Path("<checkpoints>")
"""Where a snapshot is, for errors that name a path."""


def refuse_other(user: str | User | None) -> None:
    """Raises ConfigurationError for another user than the only one of a box."""
    name = user.name if isinstance(user, User) else user
    if name not in (None, USER):
        raise errors.ConfigurationError(
            message=f"there is no user {name!r} in a sandbox; leave it out, or use {USER!r}",
            error_code=errors.ErrorCode.SANDBOX_CONFIG_INVALID,
            op="exec",
            context={"user": name},
            retryable=False,
        )


def start_error(error: Exception, root: Path) -> Exception:
    if not isinstance(error, SandboxError):
        return error
    return errors.WorkspaceStartError(
        path=root, cause=error, message=error.message, retryable=isinstance(error, Unavailable)
    )


@contextlib.contextmanager
def running_command(*command: str | Path) -> Iterator[None]:
    try:
        yield
    except SandboxError as exc:
        raise errors.ExecTransportError(
            command=command, cause=exc, message=exc.message, retryable=isinstance(exc, Unavailable)
        ) from exc


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileMissing as exc:
        raise errors.WorkspaceReadNotFoundError(path=path, cause=exc) from exc
    except SandboxError as exc:
        raise errors.WorkspaceArchiveReadError(
            path=path,
            cause=exc,
            context={"reason": exc.message},
            retryable=isinstance(exc, Unavailable),
        ) from exc


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except SandboxError as exc:
        raise errors.WorkspaceArchiveWriteError(
            path=path, cause=exc, message=exc.message, retryable=isinstance(exc, Unavailable)
        ) from exc


@contextlib.contextmanager
def keeping(snapshot_id: str) -> Iterator[None]:
    try:
        yield
    except SandboxError as exc:
        raise errors.SnapshotPersistError(
            snapshot_id=snapshot_id, path=PLACE, context={"reason": exc.message}, cause=exc
        ) from exc


@contextlib.contextmanager
def restoring(snapshot_id: str) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFound as exc:
        raise errors.SnapshotNotRestorableError(
            snapshot_id=snapshot_id, path=PLACE, context={"reason": exc.message}
        ) from exc
    except SandboxError as exc:
        raise errors.SnapshotRestoreError(
            snapshot_id=snapshot_id, path=PLACE, context={"reason": exc.message}, cause=exc
        ) from exc
