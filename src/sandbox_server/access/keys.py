"""API keys: how they are made, written and checked, and who calls with one. Pure.

A key is 256 random bits. Nobody can guess that, however fast a guess can be checked, so the slow
hashes that passwords need would only cost time in every request. The digest is keyed with a secret
of the server's: who reads the store alone cannot even tell whether a key they have is in it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, get_args

from sandbox_sdk.protocol.errors import Forbidden

Scope = Literal["use", "read", "admin", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
SOLE_TENANT = "default"
"""The tenant of all callers on a server without keys."""
PREFIX = "sbx"
_ID_BYTES = 6
_TEXT = re.compile(r"sbx_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_INCLUDES: dict[Scope, frozenset[Scope]] = {
    "use": frozenset({"use", "read"}),
    "read": frozenset({"read"}),
    "admin": frozenset(SCOPES),
    "metrics": frozenset({"metrics"}),
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """What is stored of a key. Times are seconds since 1970."""

    key_id: str
    tenant: str
    name: str
    scopes: tuple[Scope, ...]
    digest: bytes
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    replaced_by: str | None = None
    """The key that follows it; this one goes on until it expires."""

    def __repr__(self) -> str:
        return f"<Key {self.key_id} of {self.tenant}>"

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def allowed(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """These scopes, and those that they include."""
    return frozenset[Scope]().union(*(_INCLUDES[scope] for scope in scopes))


def new_key_text() -> tuple[str, str]:
    """The id of a new key, and all of it."""
    key_id = secrets.token_hex(_ID_BYTES)
    return key_id, f"{PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"


def id_of(text: str) -> str | None:
    """The id in a key; None for one that we have not made."""
    found = _TEXT.fullmatch(text)
    return found[1] if found else None


def digest_of(text: str, secret: bytes) -> bytes:
    return blake2b(text.encode(), key=secret, digest_size=32).digest()


def same(key: Key, text: str, secret: bytes) -> bool:
    """In constant time."""
    return hmac.compare_digest(key.digest, digest_of(text, secret))


def parse_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    """Raises ValueError."""
    found: list[Scope] = []
    for name in names:
        if name not in SCOPES:
            raise ValueError(f"{name!r} is no scope: there is {', '.join(SCOPES)}")
        if name not in found:
            found.append(name)
    if not found:
        raise ValueError(f"a key needs a scope: {', '.join(SCOPES)}")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what they may do."""

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
