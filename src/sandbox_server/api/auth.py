"""Authentication: API keys, each of one tenant."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from hashlib import sha256

from starlette.datastructures import Headers

from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_sdk.protocol.models import TENANT_HEADER

SOLE_TENANT = "default"
"""The tenant of all callers on a server without keys."""
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class ApiKeys:
    """The keys of all tenants, kept as digests."""

    def __init__(
        self, pairs: Iterable[tuple[str, str]], *, fleet_key: str = "", of_worker: bool = False
    ) -> None:
        """pairs: (tenant, key). A worker trusts the tenant header of calls with the fleet key.
        Raises ValueError; its message never contains a key."""
        self._of_worker = of_worker
        self._fleet = _digest(fleet_key.encode()) if fleet_key else None
        self._tenants: dict[bytes, str] = {}
        for number, (tenant, key) in enumerate(pairs, start=1):
            if not _TENANT.fullmatch(tenant) or not key:
                raise ValueError(f"API key {number} is not of the form tenant:key")
            if _digest(key.encode()) in self._tenants:
                raise ValueError(f"API key {number} repeats an earlier key")
            self._tenants[_digest(key.encode())] = tenant

    @classmethod
    def parse(cls, text: str, *, fleet_key: str = "", of_worker: bool = False) -> ApiKeys:
        """Parse `tenant:key,tenant2:key2`; a tenant may have several keys. Raises ValueError."""
        entries = (entry.strip() for entry in text.split(","))
        pairs = [(tenant, key) for tenant, _, key in (e.partition(":") for e in entries if e)]
        return cls(pairs, fleet_key=fleet_key, of_worker=of_worker)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._tenants or (self._of_worker and self._fleet))

    def tenant(self, headers: Headers) -> str:
        """The tenant of a request. Raises Unauthorized."""
        if not self.required:
            return _on_behalf_of(headers) if self._of_worker else SOLE_TENANT
        key = _key(headers)
        if key is None:
            raise Unauthorized(
                "this server needs an API key: pass api_key=, set SANDBOX_API_KEY, or send it as"
                " `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        if self._of_worker and self._fleet and hmac.compare_digest(self._fleet, _digest(key)):
            return _on_behalf_of(headers)
        found = self._find(_digest(key))
        if found is None:
            raise Unauthorized(
                "this server does not know the API key it was sent: correct api_key= or"
                " SANDBOX_API_KEY, or ask whoever runs the server for a key"
            )
        return found

    def _find(self, digest: bytes) -> str | None:
        found = None
        for known, tenant in self._tenants.items():
            # No early exit: the time must not depend on which key matches.
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def __repr__(self) -> str:
        return f"<ApiKeys of {len(set(self._tenants.values()))} tenants>"


SCHEMES = {
    "HTTPBearer": {"type": "http", "scheme": "bearer"},
    "APIKeyHeader": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""OpenAPI security schemes: the two ways to send a key."""


def _on_behalf_of(headers: Headers) -> str:
    tenant = headers.get(TENANT_HEADER, SOLE_TENANT)
    if not _TENANT.fullmatch(tenant):
        raise Unauthorized(
            f"{TENANT_HEADER} does not name a tenant: 1 to 64 characters out of A-Z a-z 0-9 . _ -"
        )
    return tenant


def _key(headers: Headers) -> bytes | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        key = headers.get("x-api-key", "")
    # Starlette decodes headers as latin-1; this restores the original bytes.
    return key.strip().encode("latin-1") or None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
