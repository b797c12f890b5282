"""Budgets: what a tenant or a key may use in a day."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sandbox_sdk.protocol.errors import RateLimited
from sandbox_sdk.units import size_bytes
from sandbox_server.usage.figures import OF_KEYS, Figures, day_ends, key_in

NEAR = 0.8
"""The share of a budget at which its tenant's operator is told."""
_ANY = "*"
KINDS: Mapping[str, Callable[[Figures], float]] = {
    "commands": lambda used: used.commands,
    "cpu_seconds": lambda used: used.cpu_us / 1e6,
    "command_seconds": lambda used: used.command_ms / 1000,
    "session_seconds": lambda used: used.session_ms / 1000,
    "bytes_in": lambda used: used.bytes_in,
    "bytes_out": lambda used: used.bytes_out,
    "egress_bytes": lambda used: used.egress_bytes,
    "storage_bytes": lambda used: used.storage,
}
EGRESS = "egress_bytes"
STORAGE = "storage_bytes"
"""Of tenants alone: what is stored outlives sessions and keys, and belongs to none of them. It is
what is stored now, not what a day adds."""
STORED_S = 5
"""When to try again after something stored was deleted."""


@dataclass(frozen=True)
class Budgets:
    by_name: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Names of tenants, and of keys with `key ` before them. `*`: of those that are not named."""

    @classmethod
    def parse(cls, text: str) -> Budgets:
        """`acme:cpu_seconds=3600,egress_bytes=10g;*:commands=10000;key *:cpu_seconds=600`. Raises
        ValueError."""
        found: dict[str, dict[str, float]] = {}
        for part in filter(None, (each.strip() for each in text.split(";"))):
            before, colon, budgets = part.partition(":")
            name = " ".join(before.split())
            if not (colon and name) or name == OF_KEYS.strip():
                raise ValueError(f"{part!r}: write tenant:cpu_seconds=3600, or * for all others")
            if name in found:
                raise ValueError(f"{name!r} is there twice")
            found[name] = dict(_budget(each.strip()) for each in budgets.split(",") if each.strip())
            if name.startswith(OF_KEYS) and STORAGE in found[name]:
                raise ValueError(f"{part!r}: what is stored belongs to the tenant, not to a key")
        return cls(found)

    @property
    def has_keys(self) -> bool:
        """Whether any key has a budget."""
        return any(name.startswith(OF_KEYS) for name in self.by_name)

    def of(self, account: str) -> Mapping[str, float]:
        """account: a tenant, or see key_account."""
        kind, name = (OF_KEYS, key_in(account)) if key_in(account) else ("", account)
        return self.by_name.get(kind + name) or self.by_name.get(kind + _ANY) or {}

    def shares(self, account: str, used: Figures) -> Iterator[tuple[str, float]]:
        """How much of each budget is used."""
        for name, most in self.of(account).items():
            yield name, KINDS[name](used) / most

    def check(self, account: str, used: Figures, *, now: float) -> None:
        """Raises RateLimited if a budget is used up."""
        for name, share in self.shares(account, used):
            if share >= 1:
                raise used_up(name, self.of(account)[name], key_id=key_in(account), now=now)


def used_up(name: str, most: float, *, key_id: str, now: float) -> RateLimited:
    of, details = (f" of key {key_id}", {"key": key_id}) if key_id else ("", {})
    if name == STORAGE:
        again = f"is used up: {most:.15g}; delete checkpoints, volumes or artifacts."
    else:
        again = f"is used up: {most:.15g} a day; it begins anew at 0:00 UTC."
    return RateLimited(
        f"the budget of {name}{of} {again} What is there can still be read, downloaded and cleaned"
        " up.",
        budget=name,
        limit=most,
        **details,
        retry_after_s=STORED_S if name == STORAGE else math.ceil(day_ends(now) - now),
    )


def _budget(part: str) -> tuple[str, float]:
    name, _, value = (each.strip() for each in part.partition("="))
    if name not in KINDS:
        raise ValueError(f"{name!r} has no budget: there are {', '.join(KINDS)}")
    try:
        most = float(size_bytes(value)) if "bytes" in name else float(value)
    except ValueError:
        most = math.nan
    if not (math.isfinite(most) and most > 0):
        raise ValueError(f"{part!r}: a budget is a number above 0, such as cpu_seconds=3600")
    return name, most
