"""Who calls, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandbox_sdk.protocol.errors import Forbidden
from sandbox_server.access.keys import SCOPES, Scope, allowed

SOLE_TENANT = "default"
"""The tenant of all callers on a server without keys."""


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    scopes: frozenset[Scope]
    """With those that others include."""
    key_id: str = ""
    """Of a stored key, or the subject of a token; empty for others."""

    @classmethod
    def of(cls, tenant: str, scopes: Iterable[Scope], key_id: str = "") -> Caller:
        return cls(tenant, allowed(scopes), key_id)

    def need(self, scope: Scope) -> None:
        """Raises Forbidden."""
        if scope not in self.scopes:
            has = ", ".join(each for each in SCOPES if each in self.scopes)
            raise Forbidden(f"this key allows {has}; what was asked needs the scope {scope}")


ANYONE = Caller.of(SOLE_TENANT, ("admin",))
"""On a server without keys."""
