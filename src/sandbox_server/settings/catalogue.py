"""The settings as a list for people: what each is called, means, is by default and is now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sandbox_sdk.units import duration_text, size_text
from sandbox_server.settings.declared import DeclaredSettings
from sandbox_server.settings.fields import PREFIX, About, about


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: str
    """As an argument of LocalBackend, and in `sandbox config --json`."""
    variable: str
    plain: bool
    """Whether the variable is accepted without its prefix too."""
    meaning: str
    default: str
    """As one would write it; empty for none, or where it depends on the machine."""
    about: About

    def text(self, value: object) -> str:
        """A value of this setting as one would write it."""
        return _text(value, self.about.unit)


def entries() -> Iterator[Entry]:
    """All settings, in the order in which they are explained."""
    for name, field in DeclaredSettings.model_fields.items():
        assert field.description
        known = about(field)
        yield Entry(
            name=name,
            variable=f"{PREFIX}{name.upper()}",
            plain=field.validation_alias is not None,
            meaning=field.description,
            default="" if known.otherwise else _text(_default(field), known.unit),
            about=known,
        )


def example_of(name: str) -> str:
    """A right value of a setting."""
    field = DeclaredSettings.model_fields.get(name)
    if field is None:
        return ""
    known = about(field)
    return known.example or _text(_default(field), known.unit)


def is_secret(name: str) -> bool:
    field = DeclaredSettings.model_fields.get(name)
    return field is not None and "SecretStr" in str(field.annotation)


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _text(value: object, unit: str) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case dict():
            return json.dumps(value) if value else ""
        case tuple():
            return ",".join(map(str, value))
        case SecretStr():
            return str(value)  # Stars.
        case float() | int() if unit == "duration":
            return duration_text(value)
        case int() if unit == "size":
            return size_text(value)
        case float():
            return f"{value:g}"
        case str() | int() | Path():
            return str(value)
    raise TypeError(f"a setting of type {type(value).__name__}")
