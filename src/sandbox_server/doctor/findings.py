"""The results of checks: what each found, for people, and how to repair it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    OPTIONAL = "optional"
    """Missing, but not needed by this configuration."""
    MISSING = "missing"
    WARNING = "warning"
    """A known weakness."""
    UNKNOWN = "unknown"
    """Could not be determined."""
    FAILED = "failed"
    """A security hole."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. `told` is the text for people, `fix` how to repair it."""

    name: str
    state: State
    told: str
    fix: str = ""
