"""What was looked at, how it is, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    OPTIONAL = "optional"
    """Not there, and not needed for what is configured."""
    MISSING = "missing"
    WARNING = "warning"
    """Weaker than it could be, and known to be so."""
    UNKNOWN = "unknown"
    """It cannot be told from here."""
    FAILED = "failed"
    """A hole."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at; what it lacks, and how to mend that."""

    name: str
    state: State
    told: str
    fix: str = ""
