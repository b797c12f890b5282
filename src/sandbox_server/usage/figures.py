"""The figures of usage: how they are added, and whose they are. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of a session, a thread or a tenant, in a day or several."""

    commands: int = 0
    cpu_us: int = 0
    command_ms: int = 0
    """How long commands ran, added up."""
    session_ms: int = 0
    """How long sessions lived, added up, but for when they were paused."""
    paused_ms: int = 0
    memory_peak: int = 0
    """Bytes: the most that one session had."""
    memory_byte_s: float = 0.0
    """Bytes of memory, times the seconds they were used."""
    bytes_in: int = 0
    bytes_out: int = 0
    egress_bytes: int = 0
    """Of connections that boxes made, both ways."""
    stored: int = 0
    """Bytes that one server stores: the most of the day."""
    stored_together: int = 0
    """The same, of a store that several servers have together."""

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            **{
                name: max(mine, theirs) if name in HIGHEST else mine + theirs
                for name in NAMES
                for mine, theirs in [(getattr(self, name), getattr(other, name))]
            }
        )

    @property
    def storage(self) -> int:
        return self.stored + self.stored_together

    @classmethod
    def of(cls, found: dict[str, Any]) -> Figures:
        """From a record, which an earlier or later version may have written."""
        return cls(**{name: found[name] for name in NAMES if name in found})


NAMES = tuple(each.name for each in fields(Figures))
HIGHEST = ("memory_peak", "stored_together")
"""Of several, the highest counts."""
OF_SESSION = tuple(name for name in NAMES if not name.startswith("stored"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one ledger has of a day: of a tenant, or of one of its sessions."""

    day: date
    figures: Figures
    thread_id: str | None = None
    session_id: str | None = None


def day_of(at: float) -> date:
    """Days are those of UTC."""
    return datetime.fromtimestamp(at, UTC).date()


def day_ends(at: float) -> float:
    """When the day of a moment is over."""
    return (at // DAY_S + 1) * DAY_S


def spans(since: float, until: float) -> list[tuple[date, float]]:
    """The days between two moments, and the seconds of each that lie between them."""
    found = []
    while since < until:
        end = min(day_ends(since), until)
        found.append((day_of(since), end - since))
        since = end
    return found


def days_between(since: date, until: date) -> list[date]:
    """Both included."""
    return [since + timedelta(days=n) for n in range((until - since).days + 1)]


OF_KEYS = "key "
"""Before a key, in the place of a tenant; no tenant's name has a space."""


def key_account(tenant: str, key_id: str) -> str:
    """With the tenant: an identity provider may give two of them the same subject. Empty for no
    key."""
    return f"{OF_KEYS}{tenant}/{key_id}" if key_id else ""


def key_in(account: str) -> str:
    """The id of the key whose account it is; empty for a tenant's."""
    return account.partition("/")[2] if account.startswith(OF_KEYS) else ""


def tenant_in(account: str) -> str:
    """The tenant whose account it is, or to which its key belongs."""
    return account.removeprefix(OF_KEYS).partition("/")[0]
