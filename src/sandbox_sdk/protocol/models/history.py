"""What is stored of sessions, also after their end."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models.artifacts import Artifact
from sandbox_sdk.protocol.models.base import Model, Request

StoredState = Literal["live", "cleaned", "expired", "lost"]


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
