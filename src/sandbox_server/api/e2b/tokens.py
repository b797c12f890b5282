"""The tokens with which e2b's SDK calls a sandbox: its API key goes to the control routes alone.

A token is bound to the caller and the session. It is computed, not stored, so every process and
coordinator that has the same secret can check it.
"""

from __future__ import annotations

import functools
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_server.api.auth import ApiKeys

Purpose = Literal["access", "traffic"]
"""`access`: commands and files. `traffic`: code, and ports that are not public."""
_PERSON = {"access": b"e2b access", "traffic": b"e2b traffic"}
_MAX_TOKEN = 1024


@dataclass(frozen=True)
class Holder:
    """Whose token it is."""

    tenant: str
    key_id: str = ""


class AccessTokens:
    def __init__(self, secret: Callable[[], bytes]) -> None:
        """secret: asked once, when the first token is made or checked."""
        self._secret = functools.cache(secret)

    def make(self, holder: Holder, session_id: str, purpose: Purpose = "access") -> str:
        name = ".".join(_packed(part) for part in (holder.tenant, holder.key_id))
        return f"{name}.{self._mac(name, session_id, purpose)}"

    def check(self, token: str, session_id: str, *purposes: Purpose) -> Holder:
        """Whose token it is. Raises Unauthorized."""
        name, _, mac = token[:_MAX_TOKEN].rpartition(".")
        right = [self._mac(name, session_id, purpose) for purpose in purposes]
        # No early exit: the time must not depend on which one matches.
        same = [
            hmac.compare_digest(each.encode(), mac.encode("utf-8", "replace")) for each in right
        ]
        if not any(same):
            raise Unauthorized(
                "the access token is not the one of this sandbox: connect to it again"
                " with Sandbox.connect(sandbox_id)"
            )
        tenant, key_id = (_unpacked(part) for part in name.split("."))
        return Holder(tenant, key_id)

    def _mac(self, name: str, session_id: str, purpose: Purpose) -> str:
        text = f"{name}.{session_id}".encode("utf-8", "surrogatepass")
        return blake2b(
            text, key=self._secret(), person=_PERSON[purpose], digest_size=32
        ).hexdigest()


class TrafficTokens:
    """For the ports of sandboxes, which are not served by the door."""

    def __init__(self, tokens: AccessTokens, keys: ApiKeys) -> None:
        self._tokens = tokens
        self._keys = keys

    def tenant_of(self, token: str, session_id: str) -> str | None:
        """Whose token it is; None if it is not one of this sandbox, or of a key that is not valid
        any more."""
        try:
            holder = self._tokens.check(token, session_id, "traffic")
            return self._keys.holder(holder.tenant, holder.key_id).tenant
        except Unauthorized:
            return None


def claimed_tenant(token: str) -> str | None:
    """The tenant that a token names, right or not."""
    try:
        return _unpacked(token[:_MAX_TOKEN].partition(".")[0]) or None
    except ValueError:
        return None


def _packed(text: str) -> str:
    return urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _unpacked(text: str) -> str:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "surrogatepass")
