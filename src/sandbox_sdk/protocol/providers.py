"""Providers by name: what a session can ask for, and what to say of one that is not there."""

from __future__ import annotations

from collections.abc import Collection

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest

SETUP = {
    "bubblewrap": "let this user have user namespaces (`sandbox doctor` says how)",
    "docker": "start a Docker engine",
    "e2b": "`pip install agent-sandbox[e2b]`, set SANDBOX_E2B_API_KEY",
    "kubernetes": "`pip install agent-sandbox[kubernetes]`, set KUBECONFIG",
}
"""What those that are known need, wherever they come from."""


def no_provider(
    name: str, *, there: Collection[str], installed: Collection[str] = ()
) -> InvalidRequest:
    """there: those that a session can have. installed: further ones that the server could open."""
    has = ", ".join(there) or "none"
    add = "add it to SANDBOX_PROVIDERS of the server"
    if name in SETUP:
        why = f"provider {name!r} is not set up: {SETUP[name]}, and {add}; there is {has}"
    elif name in installed:
        why = f"provider {name!r} is not set up: {add}; there is {has}"
    else:
        near = did_you_mean(name, [*there, *installed, *SETUP])
        why = f"unknown provider {name!r}: there is {has}{f'; {near}' if near else ''}"
    return InvalidRequest(why, provider=name, providers=list(there))
