"""Turns errors of sandboxes into those of the OpenAI Agents SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

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
def _raised_as(made: Callable[[SandboxError], Exception]) -> Iterator[None]:
    """Around calls of a sandbox. made: makes the framework's error of ours."""
    try:
        yield
    except SandboxError as exc:
        raise made(exc) from exc


def running_command(*command: str | Path) -> AbstractContextManager[None]:
    return _raised_as(
        lambda exc: errors.ExecTransportError(
            command=command, cause=exc, message=exc.message, retryable=isinstance(exc, Unavailable)
        )
    )


def reading(path: Path) -> AbstractContextManager[None]:
    def made(exc: SandboxError) -> Exception:
        if isinstance(exc, FileMissing):
            return errors.WorkspaceReadNotFoundError(path=path, cause=exc)
        why, again = {"reason": exc.message}, isinstance(exc, Unavailable)
        return errors.WorkspaceArchiveReadError(path=path, cause=exc, context=why, retryable=again)

    return _raised_as(made)


def writing(path: Path) -> AbstractContextManager[None]:
    return _raised_as(
        lambda exc: errors.WorkspaceArchiveWriteError(
            path=path, cause=exc, message=exc.message, retryable=isinstance(exc, Unavailable)
        )
    )


def keeping(snapshot_id: str) -> AbstractContextManager[None]:
    return _raised_as(
        lambda exc: errors.SnapshotPersistError(
            snapshot_id=snapshot_id, path=PLACE, context={"reason": exc.message}, cause=exc
        )
    )


def restoring(snapshot_id: str) -> AbstractContextManager[None]:
    def made(exc: SandboxError) -> Exception:
        of: Any = {"snapshot_id": snapshot_id, "path": PLACE, "context": {"reason": exc.message}}
        if isinstance(exc, CheckpointNotFound):
            return errors.SnapshotNotRestorableError(**of)
        return errors.SnapshotRestoreError(**of, cause=exc)

    return _raised_as(made)
