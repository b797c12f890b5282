"""What outlives sessions: artifacts, which are files that runs have made, and what is stored of
sessions themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models.base import UNREACHABLE, Model, Request, ThreadId

StoredState = Literal["live", "cleaned", "expired", "lost"]


class Artifact(Model):
    artifact_id: str = Field(description="Names it in a download; the server picks it.")
    thread_id: str
    session_id: str
    path: str = Field(description="Where it was in the sandbox.")
    size: int
    sha256: str
    mime: str = Field(description="Guessed from its name.")
    created_at: datetime


class ArtifactProblem(Model):
    """A file that was not kept, and why. The run itself did not fail."""

    path: str
    code: str = Field(description="Of an error, such as `file_too_large`.")
    message: str


class ArtifactsRequest(Request):
    thread_id: ThreadId | None = Field(None, description="Left out: of all threads.")
    session_id: str | None = Field(None, max_length=128, description="Left out: of all sessions.")
    limit: int = Field(100, ge=1, le=1000, description="The most artifacts.")


class ArtifactList(Model):
    artifacts: list[Artifact] = Field(description="The newest first.")
    truncated: bool = Field(False, description="Whether there are more.")
    unreachable: list[str] = Field(default_factory=list, description=UNREACHABLE)


class ArtifactTarget(Request):
    artifact_id: str = Field(
        min_length=1, max_length=200, examples=["5b1f0c2a9d3e4f6a@worker-1"], description="Which."
    )


class ArtifactDeleted(Model):
    artifact_id: str


class StoredSession(Model):
    """A session as it is remembered. Written a moment after things happen."""

    session_id: str
    sandbox_id: str = Field(description="The name of its box.")
    thread_id: str
    generation: int
    provider: str = Field(description="The runtime that made the box.")
    environment: str | None = None
    agent: str | None = None
    worker: str
    state: StoredState = Field(description="`live`, or how it ended.")
    created_at: datetime
    ended_at: datetime | None = None
    commands: int = Field(description="How many are stored.")


class StoredCommand(Model):
    command_id: str
    command: str = Field(description="Its text, cut where it is long.")
    at: datetime
    exit_code: int | None = Field(description="Null for one that ran in the background.")
    duration_ms: float
    output: str = Field(description="The end of its output.")


class StoredSessionDetail(StoredSession):
    """A stored session with all that is known of it."""

    log: list[StoredCommand] = Field(description="The newest last.")
    log_truncated: bool = Field(False, description="Whether older commands are no longer stored.")
    artifacts: list[Artifact]


class StoredSessionsRequest(Request):
    thread: str | None = Field(None, max_length=128, description="Of this thread alone.")
    environment: str | None = Field(None, max_length=200, description="Of this environment alone.")
    state: StoredState | None = Field(None, description="`live`, or how they ended.")
    text: str | None = Field(
        None, min_length=1, max_length=200, description="In a command, or in a name."
    )
    before: str | None = Field(
        None,
        max_length=200,
        description="The session_id after which to go on: those older than that one.",
    )
    limit: int = Field(50, ge=1, le=500, description="The most sessions.")


class StoredSessionList(Model):
    sessions: list[StoredSession] = Field(description="The newest first.")
    truncated: bool = Field(
        False, description="Whether there are more: ask for those `before` the last one."
    )


class StoredSessionTarget(Request):
    session_id: str = Field(min_length=1, max_length=128)
