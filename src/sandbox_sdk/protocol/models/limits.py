"""Limits of a session: what a caller may ask for, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict, cast

from pydantic import AfterValidator, BeforeValidator, Field

from sandbox_sdk.protocol.errors import InvalidRequest, size_text
from sandbox_sdk.protocol.models.base import Request
from sandbox_sdk.protocol.models.commands import MAX_TIMEOUT_S
from sandbox_sdk.units import duration_text, seconds, size_bytes

MAX_IDLE_TIMEOUT_S = 86400.0
MIN_MEMORY_BYTES = 64 << 20
"""With 32 MiB a box on gVisor does not start."""
MIN_CPUS = 0.01
MIN_PIDS = 16
MIN_DISK_BYTES = 16 << 20
_MOST_BYTES = 1 << 62
_SETTINGS = {"memory": "MAX_MEMORY", "cpus": "MAX_CPUS", "pids": "MAX_PIDS", "disk": "MAX_DISK"}


def _size(value: Any) -> Any:
    return size_bytes(value) if isinstance(value, str) else value


def _seconds(value: Any) -> Any:
    return seconds(value) if isinstance(value, str) else value


def _size_of_at_least(least: int) -> AfterValidator:
    def check(value: int) -> int:
        if not least <= value <= _MOST_BYTES:
            raise ValueError(f"write {size_text(least)} or more, in bytes or as 512m or 2g")
        return value

    return AfterValidator(check)


_Text = Annotated[str, Field(max_length=64)]
Memory = Annotated[
    int,
    BeforeValidator(
        _size, json_schema_input_type=_Text | Annotated[int, Field(ge=MIN_MEMORY_BYTES)]
    ),
    _size_of_at_least(MIN_MEMORY_BYTES),
    Field(description="Bytes, or with a unit: `2g`.", examples=["2g"]),
]
Disk = Annotated[
    int,
    BeforeValidator(_size, json_schema_input_type=_Text | Annotated[int, Field(ge=MIN_DISK_BYTES)]),
    _size_of_at_least(MIN_DISK_BYTES),
    Field(description="Bytes of /workspace, or with a unit: `4g`.", examples=["4g"]),
]
Cpus = Annotated[
    float, Field(ge=MIN_CPUS, le=100_000, allow_inf_nan=False, description="Cores.")
]  # fmt: skip
Pids = Annotated[int, Field(ge=MIN_PIDS, le=1 << 22, description="Processes and threads.")]
CommandTimeout = Annotated[
    float,
    BeforeValidator(
        _seconds,
        json_schema_input_type=_Text | Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)],
    ),
    Field(
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="Of commands that do not say: seconds, or `10m`.",
    ),
]
IdleTimeout = Annotated[
    float,
    BeforeValidator(
        _seconds,
        json_schema_input_type=_Text | Annotated[float, Field(gt=0, le=MAX_IDLE_TIMEOUT_S)],
    ),
    Field(
        gt=0,
        le=MAX_IDLE_TIMEOUT_S,
        allow_inf_nan=False,
        description="Without use, after which a session ends: seconds, or `2h`.",
    ),
]


class SessionLimits(Request):
    """What a session asks for. What is left out is the environment's, or else the server's."""

    memory: Memory | None = None
    cpus: Cpus | None = None
    pids: Pids | None = None
    disk: Disk | None = None
    command_timeout_s: CommandTimeout | None = None

    def given(self) -> dict[str, float]:
        return self.model_dump(exclude_none=True)


class LimitOptions(TypedDict, total=False):
    """The limits of a session as a program writes them."""

    memory: int | str
    cpus: float
    pids: int
    disk: int | str
    command_timeout_s: float | str


class LimitValues(TypedDict):
    """All of them, as a session has them: bytes, cores, numbers and seconds."""

    memory: int
    cpus: float
    pids: int
    disk: int
    command_timeout_s: float


def merged(base: LimitValues, more: Mapping[str, float]) -> LimitValues:
    return cast("LimitValues", {**base, **more})


def granted(asked: Mapping[str, float], *, default: LimitValues, most: LimitValues) -> LimitValues:
    """The limits of a session that asks for some. Raises InvalidRequest for more than `most`,
    which names it; what is the default is never too much."""
    maximum, usual = cast("dict[str, float]", most), cast("dict[str, float]", default)
    above = {
        name: maximum[name]
        for name, value in asked.items()
        if value > maximum[name] and value != usual[name]
    }
    if above:
        errors = [
            {"field": f"limits.{name}", "message": _too_much(name, asked[name], most)}
            for name, most in above.items()
        ]
        text = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
        raise InvalidRequest(text, errors=errors, maximum=above)
    return merged(default, asked)


def _too_much(name: str, value: float, most: float) -> str:
    setting = f", or raise SANDBOX_{_SETTINGS[name]} of the server" if name in _SETTINGS else ""
    return (
        f"{_limit_text(name, value)} is more than a session may have, {_limit_text(name, most)}:"
        f" ask for less{setting}"
    )


def _limit_text(name: str, value: float) -> str:
    if name in ("memory", "disk"):
        return size_text(value)
    if name == "command_timeout_s":
        return duration_text(value)
    return f"{value:g}"
