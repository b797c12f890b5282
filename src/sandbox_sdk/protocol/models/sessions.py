"""Sessions, and the server that has them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import (
    USER,
    WORKSPACE,
    Env,
    Model,
    Request,
    ThreadId,
    utf8_size,
)

MAX_ENV_BYTES = 128 * 1024
"""Names and values of the variables of a session."""
MAX_IDLE_TIMEOUT_S = 86400.0


class CreateSessionRequest(Request):
    thread_id: ThreadId | None = Field(None, examples=["conv-42"])
    environment: str | None = Field(
        None, max_length=200, description="A name out of the server's SANDBOX_ENVIRONMENTS."
    )
    env: Env = Field(default_factory=dict, description="Variables of every command.")
    idle_timeout_s: float | None = Field(
        None, gt=0, le=MAX_IDLE_TIMEOUT_S, description="Left out: the server's idle timeout."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        size = sum(len(name) + utf8_size(value) for name, value in self.env.items())
        if size > MAX_ENV_BYTES:
            raise ValueError(
                f"env has {size} bytes of names and values, at most {MAX_ENV_BYTES}; upload a file"
                " with the rest"
            )
        return self


class Limits(Model):
    memory_bytes: int
    cpus: float
    pids: int
    disk_bytes: int
    command_timeout_s: float
    output_limit_bytes: int
    upload_limit_bytes: int
    network: str
    not_enforced: dict[str, str] = Field(default_factory=dict)


class Session(Model):
    session_id: str
    thread_id: str
    status: Literal["created", "existing"]
    generation: int
    user: str = USER
    workspace: str = WORKSPACE
    worker: str
    runtime: str
    environment: str | None = Field(None, description="Null: the server's default one.")
    created_at: datetime
    expires_at: datetime
    limits: Limits
    not_applied: list[str] = Field(
        default_factory=list,
        description="Fields of this request that differ from what the live session was made with. "
        "To have them, end the session first.",
    )


class RunningCommand(Model):
    command_id: str
    age_s: float
    output_bytes: int


class SessionUsage(Model):
    cpu_s: float
    memory_bytes: int | None
    disk_bytes: int | None
    pids: int


class SessionSummary(Model):
    """A session as its server knows it, without asking the box."""

    session_id: str
    thread_id: str
    generation: int
    worker: str
    runtime: str
    environment: str | None = None
    created_at: datetime
    idle_s: float
    expires_at: datetime
    state: Literal["idle", "busy"]


class SessionList(Model):
    sessions: list[SessionSummary]
    unreachable: list[str] = Field(
        default_factory=list,
        description="Workers that did not answer: theirs are missing from the list.",
    )


class SessionInfo(Session):
    state: Literal["idle", "busy"]
    last_used_at: datetime
    idle_s: float
    commands: int
    running: list[RunningCommand]
    usage: SessionUsage


class CleanupResult(Model):
    status: Literal["cleaned up"] = "cleaned up"
    environment: str | None = Field(None, description="Of the session that has ended.")
    idle_timeout_s: float | None = Field(None, description="Of the session that has ended.")


class Health(Model):
    status: Literal["healthy", "degraded", "unhealthy"]
    role: str
    worker_id: str
    runtime: str
    pool_size: int
    active_sessions: int
    capacity: int
    version: str
    uptime_s: float
    checks: dict[str, str] = Field(description="What was looked at: `ok`, or what is wrong.")
