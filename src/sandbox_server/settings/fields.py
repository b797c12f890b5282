"""What a setting is made of: its type, and what is known about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_settings import NoDecode

from sandbox_sdk.units import seconds, size_bytes

PREFIX = "SANDBOX_"
LONGEST_S = 10 * 365 * 86400.0
"""Of any duration: what is longer cannot be added to a date."""

Role = Literal["standalone", "worker", "coordinator"]
IN_PROCESS = "in-process"
"""Not a role of a server: a program that makes its own boxes, with LocalBackend."""
ALL = ("standalone", "worker", "coordinator", IN_PROCESS)
SERVERS = ("standalone", "worker", "coordinator")
MAKES_BOXES = ("standalone", "worker", IN_PROCESS)
FLEET = ("worker", "coordinator")


def _seconds(value: Any) -> Any:
    return seconds(value) if isinstance(value, str) else value


def _size(value: Any) -> Any:
    return size_bytes(value) if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    """Split at commas."""
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return value


_UNITS: dict[Any, str] = {_seconds: "duration", _size: "size"}
Seconds = Annotated[
    float, BeforeValidator(_seconds), Field(ge=0, le=LONGEST_S, allow_inf_nan=False)
]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


@dataclass(frozen=True, kw_only=True)
class About:
    """What is known about a setting besides its type and default."""

    topic: str
    """The heading it stands under."""
    roles: tuple[str, ...]
    """Who uses it."""
    runtimes: tuple[str, ...] = ()
    """Those it concerns; empty: all."""
    unit: str = ""
    """That of its type, where it is not said."""
    otherwise: str = ""
    """What happens without it, where its default does not say so."""
    example: str = ""


def setting(
    default: Any,
    meaning: str,
    *,
    plain: str = "",
    topic: str,
    roles: tuple[str, ...],
    runtimes: tuple[str, ...] = (),
    unit: str = "",
    otherwise: str = "",
    example: str = "",
    **options: Any,
) -> Any:
    """A field of Settings. plain: the name without a prefix that is accepted too."""
    about = About(
        topic=topic, roles=roles, runtimes=runtimes, unit=unit, otherwise=otherwise, example=example
    )
    options |= {"description": meaning, "json_schema_extra": asdict(about)}
    options["default_factory" if callable(default) else "default"] = default
    if plain:
        options["validation_alias"] = AliasChoices(f"{PREFIX}{plain}", plain)
    return Field(**options)


def about(field: FieldInfo) -> About:
    extra = field.json_schema_extra
    assert isinstance(extra, dict), "every setting is made by setting()"
    return About(**{**extra, "unit": extra["unit"] or _unit_of(field)})  # type: ignore[arg-type]


def _unit_of(field: FieldInfo) -> str:
    """That of Seconds, Size and Path, also of one that may be None."""
    types = (field.annotation, *get_args(field.annotation))
    known = [
        *field.metadata,
        *(each for kind in types for each in getattr(kind, "__metadata__", ())),
    ]
    for each in known:
        if isinstance(each, BeforeValidator) and each.func in _UNITS:
            return _UNITS[each.func]
    return "path" if Path in types else ""
