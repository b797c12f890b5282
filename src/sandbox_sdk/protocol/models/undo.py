"""The history of a thread: a point before each thing that changed it, to go back to."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models.base import Model, Request, ThreadId
from sandbox_sdk.protocol.models.checkpoints import SAME_KEY, IdempotencyKey
from sandbox_sdk.protocol.models.sessions import Session

PathChange = Literal["made", "changed", "removed"]
PointOf = Literal["command", "code", "upload", "rename", "mkdir", "remove", "restore", "undo"]


class ChangedPaths(Model):
    """What a command did to the files in /workspace, by their paths in it."""

    made: list[str] = Field(default_factory=list)
    changed: list[str] = Field(default_factory=list)
    removed: list[str] = Field(default_factory=list)
    more: int = Field(0, description="How many more than are listed.")


class HistoryEntry(Model):
    """A command, or another change, before which a point was kept."""

    number: int = Field(description="For `undo`: it goes back to before this.")
    what: PointOf
    command: str = Field(description="Its text, cut where it is long; or what else was done.")
    at: datetime
    session_id: str
    command_id: str | None = None
    exit_code: int | None = Field(None, description="Null while it runs, and where none is known.")
    duration_ms: float | None = None
    undone: bool = Field(
        False, description="Whether the thread has gone back to before it; `undo` can go there too."
    )
    files: ChangedPaths | None = Field(
        None, description="Null where it is not known: nothing was kept of what came after it."
    )


class HistoryRequest(Request):
    thread_id: ThreadId = Field(description="Of which thread.", examples=["conv-42"])
    limit: int = Field(20, ge=1, le=250, description="The most entries.")


class ThreadHistory(Model):
    entries: list[HistoryEntry] = Field(description="The newest first.")
    truncated: bool = Field(False, description="Whether there are more.")


class ChangesRequest(Request):
    thread_id: ThreadId = Field(description="Of which thread.", examples=["conv-42"])
    number: int = Field(ge=1, description="Of which entry of its history.")


class PathChanged(Model):
    path: str = Field(description="In /workspace.")
    change: PathChange


class CommandChanges(Model):
    """What a command did to the files in /workspace."""

    number: int
    command: str
    changes: list[PathChanged]
    more: int = Field(0, description="How many more than are listed.")
    diff: str = Field(description="A patch that `git apply` takes; of text files.")
    diff_truncated: bool = Field(False, description="Whether it has not all of the changes.")


class UndoRequest(Request):
    thread_id: ThreadId = Field(description="The thread that goes back.", examples=["conv-42"])
    to: int | None = Field(
        None,
        ge=1,
        description="To before which entry of its history, also one that was undone. Left out: "
        "before the last command.",
    )
    idempotency_key: IdempotencyKey | None = Field(None, description=SAME_KEY)


class Undone(Session):
    """The new session of the thread."""

    to: int = Field(description="The entry before which the thread is now.")
    command: str = Field(description="Of that entry.")
