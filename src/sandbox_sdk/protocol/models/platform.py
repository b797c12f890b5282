"""The platform's words for a session: started in an environment, on a provider."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import Env, Model, Request, ThreadId
from sandbox_sdk.protocol.models.code import CodeError, Result
from sandbox_sdk.protocol.models.commands import MAX_TIMEOUT_S
from sandbox_sdk.protocol.models.limits import MAX_IDLE_TIMEOUT_S
from sandbox_sdk.protocol.models.stored import Artifact, ArtifactProblem


class StartSessionRequest(Request):
    provider: str | None = Field(
        None, max_length=64, description="What makes the box; left out: the server's runtime.",
        examples=["docker"],
    )  # fmt: skip
    environment: str | None = Field(None, max_length=200, examples=["Python3"])
    agent: str | None = Field(None, max_length=200, description="An agent of the registry.")
    thread_id: ThreadId | None = Field(None, description="Left out: a thread of its own.")
    env: Env = Field(default_factory=dict, description="Variables of every command.")
    idle_timeout_s: float | None = Field(None, gt=0, le=MAX_IDLE_TIMEOUT_S)


class StartedSession(Model):
    session_id: str
    sandbox_id: str = Field(description="The name of its box.")
    thread_id: str
    provider: str
    environment: str | None
    agent: str | None
    url: str = Field(description="Where this session is told of; empty without a server.")
    status: Literal["created", "existing"]
    worker: str
    created_at: datetime
    expires_at: datetime


class StoppedSession(Model):
    session_id: str
    status: Literal["destroyed"] = "destroyed"


class StopSessionRequest(Request):
    session_id: str = Field(min_length=1, max_length=128)
    sandbox_id: str | None = Field(
        None, max_length=200, description="Accepted, and not needed: the session names its box."
    )


class ExecuteCodeRequest(Request):
    session_id: str = Field(min_length=1, max_length=128)
    code: str = Field(min_length=1, max_length=1 << 20, examples=["print(42)"])
    language: str = Field("python", max_length=32)
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT_S, description="Seconds.")


class CodeAnswer(Model):
    stdout: str
    stderr: str
    results: list[Result]
    artifacts: list[Artifact]
    artifact_problems: list[ArtifactProblem] = Field(default_factory=list)
    error: CodeError | None
    session_id: str


class WriteFileRequest(Request):
    session_id: str = Field(min_length=1, max_length=128)
    path: str = Field(min_length=1, examples=["data.csv"])
    content: str = Field(description="The bytes, as text or in base64.")
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @model_validator(mode="after")
    def _decodable(self) -> Self:
        self.content_bytes()
        return self

    def content_bytes(self) -> bytes:
        """Raises ValueError where it is not base64."""
        if self.encoding == "utf-8":
            return self.content.encode()
        return b64decode(self.content, validate=True)
