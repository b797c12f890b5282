"""Budgets: what a tenant may use in a day."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sandbox_sdk.protocol.errors import RateLimited
from sandbox_sdk.units import size_bytes
from sandbox_server.usage.figures import Figures, day_ends

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
}


@dataclass(frozen=True)
class Budgets:
    by_tenant: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """`*`: of those that are not named."""

    @classmethod
    def parse(cls, text: str) -> Budgets:
        """`acme:cpu_seconds=3600,egress_bytes=10g;*:commands=10000`. Raises ValueError."""
        found: dict[str, dict[str, float]] = {}
        for part in filter(None, (each.strip() for each in text.split(";"))):
            tenant, colon, budgets = part.partition(":")
            if not (colon and tenant.strip()):
                raise ValueError(f"{part!r}: write tenant:cpu_seconds=3600, or * for all others")
            if tenant.strip() in found:
                raise ValueError(f"{tenant.strip()!r} is there twice")
            found[tenant.strip()] = dict(
                _budget(each.strip()) for each in budgets.split(",") if each.strip()
            )
        return cls(found)

    def of(self, tenant: str) -> Mapping[str, float]:
        return self.by_tenant.get(tenant) or self.by_tenant.get(_ANY) or {}

    def shares(self, tenant: str, used: Figures) -> Iterator[tuple[str, float]]:
        """How much of each budget is used."""
        for name, most in self.of(tenant).items():
            yield name, KINDS[name](used) / most

    def check(self, tenant: str, used: Figures, *, now: float) -> None:
        """Raises RateLimited if a budget is used up."""
        for name, share in self.shares(tenant, used):
            if share >= 1:
                raise used_up(name, self.of(tenant)[name], now=now)


def used_up(name: str, most: float, *, now: float) -> RateLimited:
    return RateLimited(
        f"the budget of {name} is used up: {most:.15g} a day; it begins anew at 0:00 UTC. What is"
        " there can still be read, downloaded and cleaned up.",
        budget=name,
        limit=most,
        retry_after_s=math.ceil(day_ends(now) - now),
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
