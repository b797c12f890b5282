"""Checkpoints: copies of a thread's sandbox, to go back to and to begin others from. And its
history: a point before each thing that changed it, which undo goes back to."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import (
    UNREACHABLE,
    Metadata,
    Model,
    Request,
    Target,
    ThreadId,
    check_metadata,
)
from sandbox_sdk.protocol.models.sessions import Session

MAX_FORKS = 100

CheckpointId = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["cp-0199f3c2a1b4-5d1c0a9e7f"]),
]
CheckpointName = Annotated[str, Field(min_length=1, max_length=200)]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=128)]
PathChange = Literal["made", "changed", "removed"]
PointOf = Literal["command", "code", "upload", "rename", "mkdir", "remove", "restore", "undo"]
SAME_KEY = "A second call with the same key answers what the first did."


class LeftOutFile(Model):
    path: str
    why: str


class Checkpoint(Model):
    """A copy of /workspace, of the home folder, of /tmp, and of the state of the shell."""

    checkpoint_id: str
    thread_id: str
    session_id: str
    generation: int
    name: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    automatic: bool = Field(
        False, description="Made by the server, and deleted by it when it is too old or too many."
    )
    created_at: datetime
    parent: str | None = Field(
        None, description="The checkpoint before it: what its session began with, or the last one."
    )
    environment: str | None = None
    cwd: str | None = Field(None, description="The working directory.")
    files: int
    folders: int
    size: int = Field(description="Bytes of all files.")
    added: int = Field(description="Bytes that it takes in the store beyond what was there.")
    running: list[str] = Field(
        default_factory=list, description="Processes that ran: they are not in it."
    )
    left_out: list[LeftOutFile] = Field(
        default_factory=list, description="Files that are not in it, such as sockets."
    )
    left_out_more: int = Field(0, description="How many more than are listed.")
    paused_ms: float = Field(0.0, description="How long processes stood still for it.")


class CheckpointRequest(Target):
    name: CheckpointName | None = Field(None, description="For people; need not be unique.")
    metadata: Metadata = Field(
        default_factory=dict, description="Whatever the caller wants to find again in it."
    )
    tmp: bool = Field(True, description="Whether /tmp is in it.")
    idempotency_key: IdempotencyKey | None = Field(None, description=SAME_KEY)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_metadata(self.metadata)
        return self


class CheckpointsRequest(Request):
    thread_id: ThreadId | None = Field(None, description="Left out: of all threads.")
    limit: int = Field(100, ge=1, le=1000, description="The most checkpoints.")


class CheckpointList(Model):
    checkpoints: list[Checkpoint] = Field(description="The newest first.")
    truncated: bool = Field(False, description="Whether there are more.")
    unreachable: list[str] = Field(default_factory=list, description=UNREACHABLE)


class CheckpointTarget(Request):
    checkpoint_id: CheckpointId = Field(description="Which.")


class CheckpointDeleted(Model):
    checkpoint_id: str


class RestoreRequest(Request):
    thread_id: ThreadId = Field(description="The thread that goes back.", examples=["conv-42"])
    checkpoint_id: CheckpointId = Field(description="To where; of whatever thread it is.")
    idempotency_key: IdempotencyKey | None = Field(None, description=SAME_KEY)


class ForkRequest(Request):
    thread_id: ThreadId | None = Field(
        None, description="The thread to begin from, as it is now. Give this or `checkpoint_id`."
    )
    checkpoint_id: CheckpointId | None = Field(None, description="The checkpoint to begin from.")
    into: list[ThreadId] = Field(
        min_length=1, max_length=MAX_FORKS, description="The new threads: none has a session yet."
    )
    idempotency_key: IdempotencyKey | None = Field(None, description=SAME_KEY)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if (self.thread_id is None) == (self.checkpoint_id is None):
            raise ValueError("give exactly one of thread_id and checkpoint_id")
        if len(set(self.into)) < len(self.into):
            raise ValueError("into names a thread twice")
        if self.thread_id in self.into:
            raise ValueError("into names the thread itself; restore is for that")
        return self


class ForkResult(Model):
    checkpoint_id: str = Field(description="What the threads began with.")
    sessions: list[Session] = Field(description="In the order of `into`.")


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
