"""Whose limits and budgets something counts in: a tenant's, and those of one of its keys. Pure."""

from __future__ import annotations

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
