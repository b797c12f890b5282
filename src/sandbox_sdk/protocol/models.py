"""What travels over the wire: requests and answers, frozen and checked."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from sandbox_sdk.protocol.errors import InvalidRequest, InvalidThreadId

TENANT_HEADER = "x-sandbox-tenant"
"""How a coordinator tells a worker whose call it sends on."""
WORKSPACE = "/workspace"
USER = "sandboxuser"
MAX_COMMAND = 1 << 20
MAX_COMMAND_BYTES = MAX_COMMAND - 1024
"""What a box is sent for a command, as JSON in UTF-8: its source, variables, folder and key."""
MAX_ENV_BYTES = 128 * 1024
"""Names and values of the variables of a session."""
COMMAND_TIMEOUT_S = 30.0
"""What a command may take where neither the call nor its server's settings say so."""
MAX_TIMEOUT_S = 3600.0
MAX_IDLE_TIMEOUT_S = 86400.0

THREAD_ID = r"^[A-Za-z0-9._:@+=-]{1,128}$"

Env = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], str]
SessionState = Literal["live", "created", "recreated"]
SignalName = Literal["TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT"]


def check_thread_id(thread_id: str) -> str:
    """Raises InvalidThreadId."""
    if not re.fullmatch(THREAD_ID, thread_id):
        raise InvalidThreadId(
            "a thread_id has 1 to 128 characters out of A-Z a-z 0-9 . _ : @ + = -"
        )
    return thread_id


def utf8_size(text: str) -> int:
    """Raises ValueError where it is not text."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair is not text; send valid Unicode") from None


ThreadId = Annotated[
    str, AfterValidator(check_thread_id), Field(json_schema_extra={"pattern": THREAD_ID})
]


class Model(BaseModel):
    """An answer. A later version may add fields: they are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def __getitem__(self, name: str) -> Any:
        """`result["output"]`, as callers of older clients write it."""
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)


class Request(BaseModel):
    """What is asked for is understood as a whole or refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Target(Request):
    """Whose sandbox is meant: exactly one of the two."""

    thread_id: ThreadId | None = Field(
        None, description="The conversation, chosen by the caller.", examples=["conv-42"]
    )
    session_id: str | None = Field(
        None, max_length=128, description="One life of a thread's sandbox, named by the server."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.thread_id is None) == (self.session_id is None):
            raise ValueError("give exactly one of thread_id and session_id")
        return self


class EmptyRequest(Request):
    """There is nothing to say."""


class CreateSessionRequest(Request):
    thread_id: ThreadId | None = Field(None, examples=["conv-42"])
    environment: str | None = Field(None, max_length=200, description="The image of the box.")
    env: Env = Field(default_factory=dict, description="Variables of every command.")
    idle_timeout_s: float | None = Field(None, gt=0, le=MAX_IDLE_TIMEOUT_S)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        size = sum(len(name) + utf8_size(value) for name, value in self.env.items())
        if size > MAX_ENV_BYTES:
            raise ValueError(
                f"env has {size} bytes of names and values, at most {MAX_ENV_BYTES}; upload a file"
                " with the rest"
            )
        return self


class ExecuteRequest(Target):
    command: str = Field(
        min_length=1, max_length=MAX_COMMAND, description="Bash source.", examples=["echo $((2+2))"]
    )
    timeout: float | None = Field(
        None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="Seconds. Left out: the server's command_timeout_s, which is 30 by default.",
    )
    cwd: str | None = Field(None, min_length=1, max_length=4096)
    env: Env = Field(default_factory=dict, description="Variables of this command alone.")
    stdin: str | None = None
    stdin_open: bool = Field(False, description="stdin stays open for more, until its eof is sent.")
    background: bool = Field(False, description="Answer at once; ask for the result later.")
    idempotency_key: str | None = Field(None, min_length=1, max_length=200)
    dry_run: bool = Field(False, description="Do not run it: tell what the policy says of it.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        sent = [self.command, self.env, self.cwd, self.idempotency_key]
        size = utf8_size(json.dumps(sent, ensure_ascii=False, separators=(",", ":")))
        if size > MAX_COMMAND_BYTES:
            raise ValueError(
                f"command, env, cwd and idempotency_key have {size} bytes as JSON in UTF-8, at most"
                f" {MAX_COMMAND_BYTES}; upload a file, or use stdin"
            )
        utf8_size(self.stdin or "")
        return self


class CheckRequest(ExecuteRequest):
    """A command that is not to be run: what does the policy say of it?"""

    dry_run: Literal[True]


class SimpleCommand(Model):
    """One command out of a source, as the policy sees it."""

    argv: list[str | None] = Field(description="Null where it is not known before running.")
    text: str
    start: int = Field(description="Where it stands in the command, in characters.")
    end: int
    via: list[str] = Field(description="The commands that would run it, outermost first.")


class Verdict(Model):
    """What the policy says of a command."""

    allowed: bool
    policy: str
    mode: Literal["allow-all", "blacklist", "whitelist"]
    rule: str | None = None
    reason: str | None = None
    alternative: str | None = None
    command: SimpleCommand | None = Field(None, description="The one that is rejected.")
    doubts: list[str] = Field(description="What could not be known before running.")
    commands: list[SimpleCommand]


class CommandTarget(Target):
    """A command that was started before, in whose sandbox."""

    command_id: str = Field(min_length=1, max_length=128, description="The command.")


class FollowRequest(CommandTarget):
    """A command whose events are wanted, from an offset in its output on."""

    offset: int = Field(0, ge=0)


class SignalRequest(CommandTarget):
    signal: SignalName = Field(
        "TERM", description="KILL ends everything the command has started, daemons included."
    )


class StdinRequest(CommandTarget):
    data: str = Field("", description="The bytes, as text or in base64.")
    encoding: Literal["utf-8", "base64"] = "utf-8"
    eof: bool = Field(False, description="Nothing comes after this.")
    offset: int | None = Field(
        None, ge=0, description="Where in stdin the data belongs, so that a repeat is harmless."
    )

    @model_validator(mode="after")
    def _decodable(self) -> Self:
        self.data_bytes()
        return self

    def data_bytes(self) -> bytes:
        """The data as the command will read it. Raises ValueError where it is not base64."""
        if self.encoding == "utf-8":
            return self.data.encode()
        return b64decode(self.data, validate=True)


class ListRequest(Target):
    path: str = Field(WORKSPACE, min_length=1)
    recursive: bool = Field(False, description="Folders in folders too.")
    limit: int = Field(1000, ge=1, le=100_000, description="The most entries.")


class RenameRequest(Target):
    path: str = Field(min_length=1, description="What to move.", examples=["draft.txt"])
    to: str = Field(min_length=1, description="Where it is then.", examples=["out/report.txt"])
    replace: bool = Field(False, description="Whether a file that is there already goes.")


class UploadRequest(Target):
    path: str


class DownloadRequest(Target):
    path: str = Field(min_length=1, examples=["out.csv"])


_AnyRequest = TypeVar("_AnyRequest", bound=Request)


def checked(model: type[_AnyRequest], **fields: Any) -> _AnyRequest:
    """What a server would refuse is refused here, with the same error. Raises InvalidRequest."""
    try:
        return model(**fields)
    except ValidationError as exc:
        problems = "; ".join(
            f"{'.'.join(map(str, error['loc'])) or 'request'}: {error['msg']}"
            for error in exc.errors(include_url=False)
        )
        raise InvalidRequest(problems) from None


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
    created_at: datetime
    expires_at: datetime
    limits: Limits


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


class ExecuteResult(Model):
    """How a command ended, with the output kept of it. One in the background has no exit yet."""

    exit_code: int | None
    output: str
    stdout: str
    stderr: str
    command_id: str
    duration_ms: float
    timed_out: bool
    truncated: bool
    output_bytes: int
    cwd: str
    signal: str | None = None
    reason: str | None = None
    session_id: str
    generation: int
    session_state: SessionState


class CommandInfo(Model):
    """How a command stands. The box remembers those that ended, up to some number."""

    command_id: str
    idempotency_key: str | None
    running: bool
    exit_code: int | None = Field(description="None while it runs.")
    age_s: float = Field(description="Since its start.")
    output_bytes: int


class CommandList(Model):
    commands: list[CommandInfo] = Field(description="The newest last.")
    truncated: bool = Field(False, description="Whether the box remembers more, all of them ended.")


class StdinReceipt(Model):
    received: int = Field(description="How many bytes of stdin have come so far, all together.")


class UploadResult(Model):
    status: Literal["uploaded"] = "uploaded"
    filename: str
    path: str
    size: int
    sha256: str


class FileEntry(Model):
    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    modified_at: datetime


class ListResult(Model):
    path: str
    entries: list[FileEntry]
    truncated: bool


class DownloadInfo(Model):
    """What a download will be; a folder comes as a tar, whose size is not known before."""

    filename: str
    path: str
    type: Literal["file", "directory"]
    size: int | None
    sha256: str | None
    modified_at: datetime


class CleanupResult(Model):
    status: Literal["cleaned up"] = "cleaned up"


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


class ErrorBody(Model):
    code: str
    message: str
    details: dict[str, Any] | None = None
    request_id: str


class ErrorAnswer(Model):
    """Every error has this form."""

    error: ErrorBody
