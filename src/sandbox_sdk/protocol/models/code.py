"""Code: running it in contexts, and what came of it."""

from __future__ import annotations

import base64
import json as _json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sandbox_sdk.protocol.models.base import Env, Model, Resumed, SessionState, Target, utf8_size
from sandbox_sdk.protocol.models.commands import (
    ARTIFACT_PROBLEMS,
    ARTIFACTS,
    MAX_COMMAND,
    MAX_COMMAND_BYTES,
    MAX_TIMEOUT_S,
    REPLAYED,
    RESUMED,
    ExecuteRequest,
    FollowRequest,
)
from sandbox_sdk.protocol.models.stored import Artifact, ArtifactProblem

BASH = "bash"
KERNEL_S = 70.0
"""How long a kernel may take to start, and a cell to end after its time is over, at most."""

Language = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9+#_.-]{0,31}$")]
ContextId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
ContextState = Literal["live", "created", "restarted", "lost"]


class RunCodeRequest(Target):
    code: str = Field(
        min_length=1, max_length=MAX_COMMAND, description="The source.", examples=["x = 20\nx + 1"]
    )
    language: Language | None = Field(
        None,
        description="`python`, `bash`, or any that the environment has a Jupyter kernel for, such "
        "as `javascript`, `typescript` and `r`. Left out: that of the context, or python.",
    )
    context_id: ContextId | None = Field(
        None, description="Left out: the default context of the language, which is made if needed."
    )
    timeout: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT_S, description="Seconds. Left out: as for execute."
    )
    env: Env = Field(default_factory=dict, description="Variables of this run: python and bash.")
    idempotency_key: str | None = Field(None, min_length=1, max_length=200)
    artifacts: bool = Field(
        True, description="Keep the files that it makes or changes under /workspace."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        sent = [self.code, self.env, self.context_id, self.idempotency_key]
        size = utf8_size(_json.dumps(sent, ensure_ascii=False, separators=(",", ":")))
        if size > MAX_COMMAND_BYTES:
            raise ValueError(
                f"code and env have {size} bytes as JSON in UTF-8, at most {MAX_COMMAND_BYTES};"
                " upload a file, and import or read it"
            )
        return self

    def as_command(self) -> ExecuteRequest:
        """The command that runs it, where it is bash."""
        return ExecuteRequest(
            thread_id=self.thread_id,
            session_id=self.session_id,
            command=self.code,
            timeout=self.timeout,
            env=self.env,
            idempotency_key=self.idempotency_key,
            artifacts=self.artifacts,
        )


class FollowCodeRequest(FollowRequest):
    """A run whose events are wanted, from an offset on."""


class ContextTarget(Target):
    """A context of a session."""

    context_id: ContextId


class CreateContextRequest(Target):
    language: Language = Field("python", description="Any that the environment has a kernel for.")
    cwd: str | None = Field(
        None, min_length=1, max_length=4096, description="Left out: /workspace."
    )
    context_id: ContextId | None = Field(
        None, description="A name for it. With one the call may be repeated."
    )


class Context(Model):
    """Where code runs: a kernel with its variables and imports."""

    context_id: str
    language: str
    kernel: str = Field(description="The Jupyter kernel; empty where it is lost.")
    cwd: str = Field(description="Where it was started.")
    default: bool = Field(description="Whether code of its language runs here unless told.")
    state: Literal["starting", "idle", "busy", "lost"]
    running: str | None = Field(None, description="The command_id of the run, if one runs.")
    waiting: int = Field(0, description="Runs that wait for it.")
    execution_count: int = 0
    memory_bytes: int | None = Field(None, description="Of its kernel.")


class ContextList(Model):
    contexts: list[Context]


class CodeError(Model):
    """An exception of the code, or the loss of its context."""

    name: str = Field(examples=["ZeroDivisionError"])
    value: str
    traceback: list[str]


_RICHEST_FIRST = (
    "text/html", "image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp",
    "application/pdf", "text/markdown", "text/latex", "application/json", "text/plain",
)  # fmt: skip
"""The forms that notebooks prefer. One that is not here is more specific than all of them."""


def richest(data: Mapping[str, Any]) -> str:
    """The MIME type of the form to show, where all can be shown."""
    own = [mime for mime in data if mime not in _RICHEST_FIRST]
    return next(iter([*own, *(mime for mime in _RICHEST_FIRST if mime in data)]), "")


class Result(Model):
    """Something that a run has shown, in one or several forms: by MIME type, images in base64."""

    data: dict[str, Any] = Field(examples=[{"text/plain": "2"}])
    type: str = Field(
        default_factory=lambda fields: richest(fields["data"]),
        description="The MIME type in `data` that shows the most, such as `image/png`.",
        examples=["text/plain"],
    )
    is_main_result: bool = Field(False, description="Whether it is the value of the last line.")
    display_id: str | None = None
    is_update: bool = Field(False, description="Whether it replaces an earlier one of its id.")

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def json(self) -> Any:
        """What `application/json` holds."""
        return self.data.get("application/json")

    @property
    def png(self) -> bytes | None:
        """The image, decoded."""
        return self.image("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self.image("image/jpeg")

    def image(self, mime: str) -> bytes | None:
        found = self._text(mime)
        try:
            return None if found is None else base64.b64decode(found)
        except ValueError:
            return None

    def _text(self, mime: str) -> str | None:
        found = self.data.get(mime)
        return None if found is None else str(found)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """In a notebook it looks as it would there."""
        return dict(self.data)


class CodeFacts(Model):
    """How a run has ended, without what it wrote."""

    command_id: str
    context_id: str
    language: str
    context_state: ContextState = Field(
        description="`created` and `restarted`: the context began with this run, the latter after "
        "it was lost. `lost`: its kernel ended in this run."
    )
    execution_count: int | None = None
    duration_ms: float
    timed_out: bool = False
    reason: str | None = Field(
        None,
        description="Why it ended, if not by itself: `timeout`, `interrupted`; with its context "
        "lost: `oom`, `killed`, `exited`, or `timeout` where an interrupt did not end it.",
    )
    truncated: bool = Field(description="Whether output or results were left out.")
    output_bytes: int = Field(description="Of all stdout and stderr, with what was left out.")
    late_output: str = Field(
        "", description="What background threads wrote in this context since its last run."
    )
    artifacts: list[Artifact] = Field(default_factory=list, description=ARTIFACTS)
    artifact_problems: list[ArtifactProblem] = Field(
        default_factory=list, description=ARTIFACT_PROBLEMS
    )
    replayed: bool = Field(False, description=REPLAYED)
    session_id: str
    generation: int
    session_state: SessionState
    resumed: Resumed | None = Field(None, description=RESUMED)


class CodeResult(CodeFacts):
    """What a run has written, shown and raised."""

    stdout: str
    stderr: str
    results: list[Result]
    error: CodeError | None = Field(None, description="Null where it ended in order.")

    @property
    def main_result(self) -> Result | None:
        """The value of the last line."""
        return next((result for result in self.results if result.is_main_result), None)

    @property
    def text(self) -> str | None:
        """The value of the last line as text."""
        return self.main_result.text if self.main_result else None

    @property
    def png(self) -> bytes | None:
        """The first image."""
        return next((result.png for result in self.results if result.png), None)

    @property
    def json(self) -> Any:
        """The first result that is JSON."""
        return next((r.json for r in self.results if "application/json" in r.data), None)

    def _repr_html_(self) -> str:
        from sandbox_sdk.notebook import as_html

        return as_html(self)
