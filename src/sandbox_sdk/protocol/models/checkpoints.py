"""Checkpoints: copies of a thread's sandbox, to go back to and to begin others from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

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
