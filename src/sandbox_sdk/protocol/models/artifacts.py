"""Artifacts: files that runs have made, kept after their session has ended."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from sandbox_sdk.protocol.models.base import UNREACHABLE, Model, Request, ThreadId


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
