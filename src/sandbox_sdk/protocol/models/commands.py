"""Commands: running them, following them, and what the policy says of them."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import (
    Env,
    Model,
    Request,
    Resumed,
    SessionState,
    Target,
    WrongField,
    utf8_size,
)
from sandbox_sdk.protocol.models.stored import Artifact, ArtifactProblem

MAX_COMMAND = 1 << 20
MAX_COMMAND_BYTES = MAX_COMMAND - 1024
"""What a box is sent for a command, as JSON in UTF-8: its source, variables, folder and key."""
_SHORT = MAX_COMMAND_BYTES // 8
"""Characters. In JSON an ASCII character has at most six bytes."""
COMMAND_TIMEOUT_S = 30.0
"""What a command may take where neither the call nor its server's settings say so."""
MAX_TIMEOUT_S = 3600.0

HINT = (
    "Where a command failed for want of something: what this sandbox does not have, and what to do "
    "instead."
)
RESUMED = "What a `resumed` session went on from; null otherwise."
REPLAYED = (
    "Whether an earlier call with this idempotency_key started the command, and this one only "
    "got its result. Retries that the SDK or a coordinator makes by itself do not count."
)

ARTIFACTS = (
    "The files that were kept: those marked with `save_artifact`, and where it was asked with "
    "`artifacts` those it made or changed under /workspace."
)
ARTIFACT_PROBLEMS = "Files that should have been kept and were not."

OutputEncoding = Literal["utf-8", "bytes"]
ENCODING = (
    "How events have the output: as text, in which what is not UTF-8 is replaced, or with `bytes` "
    "exactly as it was written, in base64."
)

SignalName = Literal["TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT"]


MAX_TERMINAL = 10000
TERM = "xterm-256color"
Cells = Annotated[int, Field(ge=1, le=MAX_TERMINAL)]


class Pty(Request):
    """A terminal for a command, instead of pipes."""

    rows: Cells = 24
    cols: Cells = 80
    term: str = Field(
        TERM,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$",
        description="The kind of terminal that shows it, as TERM has it.",
    )


class PtySize(Model):
    rows: int
    cols: int


class ExecuteRequest(Target):
    command: str = Field(
        max_length=MAX_COMMAND,
        description="Bash source. With `pty` it may be empty: then it is an interactive bash with "
        "the state of the last command, which leaves its own to the next one.",
        examples=["echo $((2+2))"],
    )
    timeout: float | None = Field(
        None,
        ge=0,
        le=MAX_TIMEOUT_S,
        description="Seconds. Left out: the server's command_timeout_s, which is 30 by default; "
        "for a command in the background, none. 0: none, if the operator allows it.",
    )
    cwd: str | None = Field(None, min_length=1, max_length=4096)
    env: Env = Field(default_factory=dict, description="Variables of this command alone.")
    stdin: str | None = None
    stdin_open: bool = Field(False, description="stdin stays open for more, until its eof is sent.")
    pty: Pty | None = Field(
        None,
        strict=False,
        description="Run it on a terminal of this size: it takes input while it runs, as with "
        "stdin_open, writes everything to stdout, and Ctrl-C is the input `\\u0003`.",
    )
    encoding: OutputEncoding = Field("utf-8", description=ENCODING)
    background: bool = Field(
        False,
        description="Answer at once; ask for the result later. It runs until it ends, is killed or "
        "the session ends, and while it runs the session does not expire.",
    )
    idempotency_key: str | None = Field(None, min_length=1, max_length=200)
    dry_run: bool = Field(False, description="Do not run it: tell what the policy says of it.")
    notify: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="With `background`: a webhook of the operator's, by its name, that is told "
        "when the command ends.",
    )
    artifacts: bool = Field(
        False,
        description="Keep the files that it makes or changes under /workspace as artifacts, beyond "
        "the end of the session.",
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.command and self.pty is None:
            raise WrongField("command", "it is empty; give bash source, or a pty to type it in")
        return self

    @model_validator(mode="after")
    def _ends_here(self) -> Self:
        if self.notify is not None and (not self.background or self.pty is not None):
            raise ValueError("notify is for a command in the background without a terminal")
        if self.artifacts and self.background:
            raise ValueError(
                "artifacts are kept when a command ends, which one in the background does after"
                " this answer; leave out artifacts, and run save_artifact in a later command"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.stdin is None and not self.env and self.cwd is None and self._is_short():
            return self
        sent = [self.command, self.env, self.cwd, self.idempotency_key]
        size = utf8_size(json.dumps(sent, ensure_ascii=False, separators=(",", ":")))
        if size > MAX_COMMAND_BYTES:
            raise ValueError(
                f"command, env, cwd and idempotency_key have {size} bytes as JSON in UTF-8, at most"
                f" {MAX_COMMAND_BYTES}; upload a file, or use stdin"
            )
        utf8_size(self.stdin or "")
        return self

    def _is_short(self) -> bool:
        """Whether command and key are far from the limit, whatever they contain: most are, and
        counting their bytes takes longer than all else here."""
        key = self.idempotency_key or ""
        return len(self.command) + len(key) < _SHORT and self.command.isascii() and key.isascii()


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
    encoding: OutputEncoding = Field("utf-8", description=ENCODING)


class SignalRequest(CommandTarget):
    signal: SignalName = Field(
        "TERM", description="KILL ends everything the command has started, daemons included."
    )


class ResizeRequest(CommandTarget):
    rows: Cells
    cols: Cells


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
    hint: str | None = Field(None, description=HINT)
    replayed: bool = Field(False, description=REPLAYED)
    artifacts: list[Artifact] = Field(default_factory=list, description=ARTIFACTS)
    artifact_problems: list[ArtifactProblem] = Field(
        default_factory=list, description=ARTIFACT_PROBLEMS
    )
    session_id: str
    generation: int
    session_state: SessionState
    resumed: Resumed | None = Field(None, description=RESUMED)


class CommandInfo(Model):
    """How a command stands. The box remembers those that ended, up to some number."""

    command_id: str
    idempotency_key: str | None
    command: str | None = Field(
        None,
        description="Its text, cut where it is long; null where the server does not know it any "
        "more, as after its restart once the command has ended.",
    )
    running: bool
    pid: int | None = Field(
        None,
        description="Of its shell, in the box, while it runs; null for code, and where the box was "
        "made by an earlier version.",
    )
    cwd: str | None = Field(
        None, description="Where it was started, if the call said so; while it runs."
    )
    env: dict[str, str] | None = Field(
        None,
        description="The variables of this command alone, while it runs; null where they have more "
        "than 500 bytes.",
    )
    exit_code: int | None = Field(description="None while it runs.")
    age_s: float = Field(description="Since its start.")
    output_bytes: int
    is_code: bool = Field(False, description="Whether it is a run of code.")
    pty: PtySize | None = Field(None, description="The size of its terminal, if it has one.")


class CommandList(Model):
    commands: list[CommandInfo] = Field(description="The newest last.")
    truncated: bool = Field(False, description="Whether the box remembers more, all of them ended.")


class StdinReceipt(Model):
    received: int = Field(description="How many bytes of stdin have come so far, all together.")
