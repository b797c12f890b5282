"""The tenant of a call between servers of a fleet, and the id of its API key, signed with the key
that the servers share."""

from __future__ import annotations

import functools
from hashlib import blake2b

SIGNATURE_HEADER = "x-sandbox-tenant-signature"


@functools.lru_cache(maxsize=4096)
def tenant_signature(fleet_key: str, tenant: str) -> str:
    """What a coordinator sends beside the name of a tenant."""
    key = blake2b(fleet_key.encode(), person=b"tenants", digest_size=32).digest()
    return blake2b(tenant.encode(), key=key, digest_size=32).hexdigest()


def key_signature(fleet_key: str, tenant: str, key: str) -> str:
    """What it sends beside a key's id, as the header has it. No tenant's name has a space."""
    return tenant_signature(fleet_key, f"{tenant} {key}")
