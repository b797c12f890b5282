"""Authentication: who a caller is, by an API key or a token."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.datastructures import Headers

from sandbox_sdk.protocol.calling_key import KEY_HEADER, KEY_SIGNATURE_HEADER, from_header
from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_sdk.protocol.models import TENANT_HEADER
from sandbox_sdk.protocol.tenant_signature import (
    SIGNATURE_HEADER,
    key_signature,
    tenant_signature,
)
from sandbox_server.access.keys import ANYONE, SOLE_TENANT, TENANT, Caller, Scope
from sandbox_server.access.known_keys import KnownKeys
from sandbox_server.access.tokens import Tokens

__all__ = ["SCHEMES", "SOLE_TENANT", "ApiKeys"]

_OF_SETTINGS: tuple[Scope, ...] = ("use", "metrics")
"""What a key of SANDBOX_API_KEYS allows."""
_FOR_OTHERS: tuple[Scope, ...] = ("admin",)
"""A coordinator has checked what its caller may do."""


class ApiKeys:
    """The keys of all tenants: those of the settings, kept as digests, and those that are stored;
    and the tokens of an identity provider."""

    def __init__(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        fleet_key: str = "",
        of_worker: bool = False,
        stored: KnownKeys | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """pairs: (tenant, key). A worker trusts the tenant that a coordinator has signed with the
        fleet key. Raises ValueError; its message never contains a key."""
        self._of_worker = of_worker
        self._fleet_key = fleet_key
        self._stored = stored
        self._tokens = tokens
        self._callers: dict[bytes, Caller] = {}
        for number, (tenant, key) in enumerate(pairs, start=1):
            if not TENANT.fullmatch(tenant) or not key:
                raise ValueError(f"API key {number} is not of the form tenant:key")
            if _digest(key.encode()) in self._callers:
                raise ValueError(f"API key {number} repeats an earlier key")
            self._callers[_digest(key.encode())] = Caller.of(tenant, _OF_SETTINGS)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        fleet_key: str = "",
        of_worker: bool = False,
        stored: KnownKeys | None = None,
        tokens: Tokens | None = None,
    ) -> ApiKeys:
        """Parse `tenant:key,tenant2:key2`; a tenant may have several keys. Raises ValueError."""
        entries = (entry.strip() for entry in text.split(","))
        pairs = [(tenant, key) for tenant, _, key in (e.partition(":") for e in entries if e)]
        return cls(pairs, fleet_key=fleet_key, of_worker=of_worker, stored=stored, tokens=tokens)

    @property
    def required(self) -> bool:
        """Whether requests need a key. It may become so while the server runs."""
        return bool(
            self._callers
            or (self._of_worker and self._fleet_key)
            or self._tokens is not None
            or (self._stored is not None and self._stored.required)
        )

    def tenant(self, headers: Headers) -> str:
        """The tenant of a request that uses sandboxes. Raises Unauthorized, Forbidden."""
        return self.caller(headers, "use").tenant

    def caller(self, headers: Headers, scope: Scope) -> Caller:
        """Who sends a request that needs this scope. Raises Unauthorized, Forbidden."""
        if not self.required:
            return _on_behalf_of(headers) if self._of_worker else ANYONE
        key = _key(headers)
        if key is None:
            raise Unauthorized(
                "this server needs an API key: pass api_key=, set SANDBOX_API_KEY, or send it as"
                " `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        if self._of_worker and self._is_of_fleet(key):
            self._check_signature(headers)
            return _on_behalf_of(headers)
        found = self._find(key)
        if found is None:
            raise Unauthorized(
                "this server does not know the API key it was sent: correct api_key= or"
                " SANDBOX_API_KEY, or ask whoever runs the server for a key"
            )
        found.need(scope)
        return found

    def holder(self, tenant: str, key_id: str) -> Caller:
        """Who shows a token that was made for a caller with the scope `use`. Raises Unauthorized
        if the key of that caller is not valid any more."""
        caller = Caller.of(tenant, ("use",), key_id)
        if not self.required:
            valid = tenant == SOLE_TENANT
        elif self._stored is not None and (stored := self._stored.by_id(key_id)) is not None:
            valid = stored.tenant == tenant and self._stored.is_valid(stored)
        else:
            known = any(each.tenant == tenant for each in self._callers.values())
            valid = self._tokens is not None or (not key_id and known)
        if not valid:
            raise Unauthorized("the API key with which this sandbox was made is not valid any more")
        return caller

    def holders(self) -> list[tuple[str, str]]:
        """The tenant and key id of every caller that is known beforehand."""
        if not self.required:
            return [(SOLE_TENANT, "")]
        of_settings = {(each.tenant, "") for each in self._callers.values()}
        stored = [] if self._stored is None else self._stored.valid()
        return sorted(of_settings | {(key.tenant, key.key_id) for key in stored})

    def _is_of_fleet(self, key: bytes) -> bool:
        return bool(self._fleet_key) and hmac.compare_digest(self._fleet_key.encode(), key)

    def _check_signature(self, headers: Headers) -> None:
        """Coordinators of the version before this one do not sign. Raises Unauthorized."""
        given = headers.get(SIGNATURE_HEADER)
        if given is None:
            return
        tenant, key = headers.get(TENANT_HEADER, ""), headers.get(KEY_HEADER)
        self._check(tenant_signature(self._fleet_key, tenant), given, "tenant")
        if key is not None:
            right = key_signature(self._fleet_key, tenant, key)
            self._check(right, headers.get(KEY_SIGNATURE_HEADER, ""), "key")

    def _check(self, right: str, given: str, of: str) -> None:
        if not hmac.compare_digest(right.encode(), given.encode("latin-1")):
            raise Unauthorized(f"the {of} of this call is not the one that was signed")

    def _find(self, key: bytes) -> Caller | None:
        found = None
        digest = _digest(key)
        for known, caller in self._callers.items():
            # No early exit: the time must not depend on which key matches.
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None and self._stored is not None:
            stored = self._stored.find(key.decode("latin-1"))
            if stored is not None:
                found = Caller.of(stored.tenant, stored.scopes, stored.key_id)
        if found is None and self._tokens is not None:
            found = self._tokens.caller(key)
        return found

    def __repr__(self) -> str:
        return f"<ApiKeys of {len({each.tenant for each in self._callers.values()})} tenants>"


SCHEMES = {
    "HTTPBearer": {"type": "http", "scheme": "bearer"},
    "APIKeyHeader": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""OpenAPI security schemes: the two ways to send a key."""


def _on_behalf_of(headers: Headers) -> Caller:
    tenant = headers.get(TENANT_HEADER, SOLE_TENANT)
    if not TENANT.fullmatch(tenant):
        raise Unauthorized(
            f"{TENANT_HEADER} does not name a tenant: 1 to 64 characters out of A-Z a-z 0-9 . _ -"
        )
    return Caller.of(tenant, _FOR_OTHERS, from_header(headers.get(KEY_HEADER, "")))


def _key(headers: Headers) -> bytes | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        key = headers.get("x-api-key", "")
    # Starlette decodes headers as latin-1; this restores the original bytes.
    return key.strip().encode("latin-1") or None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
