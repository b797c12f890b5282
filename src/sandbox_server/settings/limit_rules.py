"""How much each tenant and each key may ask for, as the operator has written it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from sandbox_server.usage.figures import OF_KEYS, key_account

ANY = "*"


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """None: no limit."""

    requests: float | None = None
    """A second."""
    burst: int | None = None
    """Requests at once after a pause; as many as two seconds bring, if it is not given."""
    commands: int | None = None
    """At a time."""
    sessions: int | None = None
    """Live."""
    sessions_per_hour: int | None = None

    @property
    def at_once(self) -> int:
        return self.burst or max(round(2 * (self.requests or 0)), 1)


class Limited(NamedTuple):
    """A tenant or a key, and what it may."""

    tenant: str
    name: str
    kind: str
    allowance: Allowance


_NAMES = tuple(each.name for each in fields(Allowance))
_NONE = Allowance()


class LimitRules:
    """By the names of tenants, and of keys with `key ` before them; `*` for all others."""

    def __init__(self, by_name: Mapping[str, Allowance] | None = None) -> None:
        self._by_name = dict(by_name or {})

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @classmethod
    def parse(cls, text: str) -> LimitRules:
        """`acme: requests=50, commands=10; *: requests=10; key *: requests=5`. Raises
        ValueError."""
        found: dict[str, Allowance] = {}
        for part in (part.strip() for part in text.split(";")):
            if not part:
                continue
            name, colon, rest = part.partition(":")
            name = " ".join(name.split())
            if not colon or not name or name == OF_KEYS.strip():
                raise ValueError(f"{part[:80]!r} is not of the form TENANT: limit=number, …")
            if name in found:
                raise ValueError(f"{name!r} has limits twice")
            found[name] = _allowance(rest)
        return cls(found)

    def of_tenant(self, tenant: str) -> Allowance:
        return self._by_name.get(tenant) or self._by_name.get(ANY) or _NONE

    def of_key(self, key_id: str) -> Allowance:
        if not key_id:
            return _NONE
        return self._by_name.get(OF_KEYS + key_id) or self._by_name.get(OF_KEYS + ANY) or _NONE

    def of(self, tenant: str, key_id: str) -> list[Limited]:
        """Whoever has limits of a caller: its key first, so that one that asks for too much uses up
        nothing of what its tenant may."""
        of_key = Limited(tenant, key_account(tenant, key_id), "key", self.of_key(key_id))
        of_tenant = Limited(tenant, tenant, "tenant", self.of_tenant(tenant))
        return [each for each in (of_key, of_tenant) if each.allowance != _NONE]


def _allowance(text: str) -> Allowance:
    found: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",")):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in _NAMES:
            raise ValueError(f"{name[:80]!r} is no limit: there is {', '.join(_NAMES)}")
        try:
            number = float(value.removesuffix("/s")) if name == "requests" else int(value)
        except ValueError:
            raise ValueError(f"{name}={value[:80]} is not a number") from None
        if not 0 < number < 1e9:
            raise ValueError(f"{name}={value[:80]} is not above 0, or too large")
        found[name] = number
    return Allowance(**found)  # type: ignore[arg-type]
