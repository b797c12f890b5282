"""Fields that all log lines of one request have: its id, tenant, thread and command.

One variable that holds all of them: structlog has one for each, which costs every request more.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any

Bound = Token[dict[str, Any]]
_fields: ContextVar[dict[str, Any]] = ContextVar("log_fields")


def begin(**fields: Any) -> Bound:
    """Bind these, and only these, until end() is called with what this returns."""
    return _fields.set(fields)


def end(bound: Bound) -> None:
    _fields.reset(bound)


def bind(**fields: Any) -> None:
    """Bind more. Without a request there is nothing to bind them to."""
    found = _fields.get(None)
    if found is not None:
        found.update(fields)


def bound() -> Mapping[str, Any]:
    return _fields.get({})
