"""What all models are built on: the two kinds of them, and how a request names its sandbox."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sandbox_sdk.protocol.errors import InvalidRequest, InvalidThreadId

TENANT_HEADER = "x-sandbox-tenant"
"""How a coordinator tells a worker whose call it sends on."""
WORKSPACE = "/workspace"
USER = "sandboxuser"
THREAD_ID = r"^[A-Za-z0-9._:@+=-]{1,128}$"

Env = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], str]
SessionState = Literal["live", "created", "recreated"]


def check_thread_id(thread_id: str) -> str:
    """Raises InvalidThreadId."""
    if not re.fullmatch(THREAD_ID, thread_id):
        raise InvalidThreadId(
            f"thread_id {thread_id[:140]!r} has {len(thread_id)} characters; use 1 to 128 out of"
            " A-Z a-z 0-9 . _ : @ + = -"
        )
    return thread_id


def utf8_size(text: str) -> int:
    """Raises ValueError for text that UTF-8 cannot encode."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair cannot be UTF-8; send valid Unicode") from None


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


_AnyRequest = TypeVar("_AnyRequest", bound=Request)


def checked(model: type[_AnyRequest], **fields: Any) -> _AnyRequest:
    """A request, checked as the server would check it. Raises InvalidRequest."""
    try:
        return model(**fields)
    except ValidationError as exc:
        raise InvalidRequest(problems(exc, "request")) from None


def problems(exc: ValidationError, whole: str) -> str:
    """What is wrong with which fields. whole: the name of the thing that has them."""
    return "; ".join(
        f"{'.'.join(map(str, error['loc'])) or whole}: {error['msg']}"
        for error in exc.errors(include_url=False)
    )


class ErrorBody(Model):
    code: str
    message: str
    details: dict[str, Any] | None = None
    request_id: str


class ErrorAnswer(Model):
    """Every error has this form."""

    error: ErrorBody
