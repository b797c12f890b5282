"""What all models are built on: the two kinds of them, and how a request names its sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sandbox_sdk.protocol.errors import InvalidRequest, InvalidThreadId

TENANT_HEADER = "x-sandbox-tenant"
"""How a coordinator tells a worker whose call it sends on."""
WORKSPACE = "/workspace"
USER = "sandboxuser"
THREAD_ID = r"^[A-Za-z0-9._:@+=-]{1,128}$"
_THREAD_ID = re.compile(THREAD_ID)
MAX_FIELD_ERRORS = 20
_TOLD = 3
"""Field errors in a message; `details` has the rest."""
_ECHO = 200
"""Characters of a field's name, which the caller chose, and of what is said about it."""

Env = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], str]
MAX_METADATA_BYTES = 8192
Metadata = dict[Annotated[str, Field(max_length=200)], str]
"""What a caller writes on something of its own; see check_metadata()."""
MAX_LIFETIME_S = 30 * 86400.0
UNREACHABLE = "Workers that did not answer: theirs are missing from the list."
SessionState = Literal["live", "created", "recreated", "restored", "resumed"]


def check_thread_id(thread_id: str) -> str:
    """Raises InvalidThreadId."""
    if _THREAD_ID.fullmatch(thread_id):
        return thread_id
    wrong = re.search(r"[^A-Za-z0-9._:@+=-]", thread_id)
    if wrong:
        why = f"contains {wrong[0]!r}, which is not allowed, as character {wrong.start() + 1}"
    else:
        why = f"has {len(thread_id)} characters"
    raise InvalidThreadId(
        f"thread_id {thread_id[:140]!r} {why}; use 1 to 128 characters out of"
        " A-Z a-z 0-9 . _ : @ + = -"
    )


def utf8_size(text: str) -> int:
    """Raises ValueError for text that UTF-8 cannot encode."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair cannot be UTF-8; send valid Unicode") from None


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises ValueError."""
    size = sum(utf8_size(name) + utf8_size(value) for name, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"metadata has {size} bytes, at most {MAX_METADATA_BYTES}")


ThreadId = Annotated[
    str, AfterValidator(check_thread_id), Field(json_schema_extra={"pattern": THREAD_ID})
]


class Model(BaseModel):
    """An answer. A later version may add fields: they are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    # A mapping too, as callers of older clients use it: `result["output"]`, `dict(result)`.

    def __getitem__(self, name: str) -> Any:
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(type(self).model_fields)

    def __len__(self) -> int:
        return len(type(self).model_fields)

    def __bool__(self) -> bool:
        return True

    def keys(self) -> KeysView[str]:
        return type(self).model_fields.keys()

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name) if name in type(self).model_fields else default

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return self.model_dump(mode="json")


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


class Resumed(Model):
    """What a session went on from after its box was gone."""

    checkpoint_id: str
    age_s: float = Field(description="Seconds since that checkpoint was taken.")
    complete: bool = Field(
        description="Whether nothing was lost: the box ended with this checkpoint. If not, what "
        "happened after it was taken is gone."
    )


class EmptyRequest(Request):
    """There is nothing to say."""


_AnyRequest = TypeVar("_AnyRequest", bound=Request)


def checked(model: type[_AnyRequest], **fields: Any) -> _AnyRequest:
    """A request, checked as the server would check it. Raises InvalidRequest."""
    try:
        return model(**fields)
    except ValidationError as exc:
        raise invalid_fields(exc.errors(include_url=False), known=model.model_fields) from None


class FieldError(TypedDict):
    """One of `details["errors"]` of an InvalidRequest. field: empty for the request as a whole."""

    field: str
    message: str


def invalid_fields(
    errors: Iterable[Mapping[str, Any]], *, known: Iterable[str] = ()
) -> InvalidRequest:
    """Pydantic's errors by field, without the values that were sent. known: all the fields."""
    found = field_errors(errors, known=known)
    return InvalidRequest(told(found) or "the request is not valid", errors=found)


def field_errors(
    errors: Iterable[Mapping[str, Any]], *, known: Iterable[str] = ()
) -> list[FieldError]:
    fields = ", ".join(known)
    return [_field_error(error, fields) for error in errors][:MAX_FIELD_ERRORS]


def told(errors: Sequence[FieldError]) -> str:
    """The first of the errors as one line."""
    return "; ".join(
        f"{each['field']}: {each['message']}" if each["field"] else each["message"]
        for each in errors[:_TOLD]
    )


class WrongField(ValueError):
    """For a check of a whole request that finds one field at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _field_error(error: Mapping[str, Any], fields: str) -> FieldError:
    names = list(error["loc"])
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, WrongField):
        names.append(cause.field)
    message = str(error["msg"]).removeprefix("Value error, ")
    match error["type"]:
        case "json_invalid":
            names, message = [], "this is not valid JSON; send a JSON object"
        case "model_attributes_type" | "dict_type" | "model_type" if not names:
            message = "send a JSON object"
        case "missing":
            message = "this field is required, but missing"
        case "extra_forbidden":
            there_are = f"; those there are: {fields}" if fields and len(names) == 1 else ""
            message = f"there is no such field{there_are}"
    return {"field": _clipped(".".join(map(str, names))), "message": _clipped(message)}


def _clipped(text: str) -> str:
    return text if len(text) <= _ECHO else f"{text[: _ECHO - 1]}…"


class ErrorBody(Model):
    code: str
    message: str
    details: dict[str, Any] | None = None
    request_id: str


class ErrorAnswer(Model):
    """Every error has this form."""

    error: ErrorBody
