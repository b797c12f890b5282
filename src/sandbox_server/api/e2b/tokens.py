"""The tokens with which e2b's SDK calls a sandbox: its API key goes to the control routes alone.

A token is bound to the caller and the session. It is computed, not stored, so every process and
coordinator that has the same secret can check it.

The SDK signs URLs of files with them, without asking; such a URL names neither sandbox nor tenant.
Its signature is a hash of the token with what it allows, so the sandbox is found by trying the
tokens of those there are.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import time
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Literal

from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_sdk.protocol.models import SessionSummary
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.route import Served

Purpose = Literal["access", "traffic"]
"""`access`: commands and files. `traffic`: code, and ports that are not public."""
_PERSON = {"access": b"e2b access", "traffic": b"e2b traffic"}
_MAX_TOKEN = 1024
_LOOK_S = 1.0
"""How often sessions are listed for signatures that fit none of those known, at most."""
_REMEMBERED = 10_000
_PAGE = 1000
_SLICE = 200


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


@dataclass(frozen=True)
class Candidate:
    holder: Holder
    session_id: str


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What a URL says."""

    path: str
    operation: Literal["read", "write"]
    user: str
    signature: str
    expiration: str = ""

    def fits(self, token: str) -> bool:
        parts = [self.path, self.operation, self.user, token]
        text = ":".join([*parts, self.expiration] if self.expiration else parts)
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        right = "v1_" + b64encode(digest).decode().rstrip("=")
        return hmac.compare_digest(right.encode(), self.signature.encode("utf-8", "replace"))

    def check_time(self, now: float) -> None:
        """Raises Unauthorized."""
        if not self.expiration:
            return
        if not self.expiration.isdecimal() or int(self.expiration) < now:
            raise Unauthorized("signature is already expired")  # In the words of e2b's.


class SignedUrls:
    def __init__(self, served: Served, tokens: AccessTokens) -> None:
        self._served = served
        self._tokens = tokens
        self._known: dict[Candidate, str] = {}
        """With their tokens."""
        self._looked_at = -_LOOK_S
        self._looking = asyncio.Lock()

    def remember(self, holder: Holder, session_id: str) -> None:
        """A sandbox whose token was told here. Callers that are not known beforehand, those of an
        identity provider, are found by this alone."""
        candidate = Candidate(holder, session_id)
        token = self._known.pop(candidate, None) or self._tokens.make(holder, session_id)
        self._known[candidate] = token
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

    async def find(self, signed: Signed) -> Candidate:
        """Raises Unauthorized."""
        signed.check_time(time.time())
        found = await _first(signed, self._known)
        if found is None:
            found = await _first(signed, await self._look())
        if found is None:
            raise Unauthorized("the signature of this URL is not valid, or its sandbox is gone")
        self.remember(found.holder, found.session_id)
        return found

    async def _look(self) -> dict[Candidate, str]:
        """Those of all tenants, unless they were just looked at."""
        async with self._looking:
            wait_s = self._looked_at + _LOOK_S - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            found = [
                Candidate(Holder(tenant, key_id), each.session_id)
                for tenant, key_ids in _by_tenant(self._served.keys.holders()).items()
                for each in await self._sessions(tenant)
                for key_id in key_ids
            ]
            self._looked_at = time.monotonic()
            return {each: self._tokens.make(each.holder, each.session_id) for each in found}

    async def _sessions(self, tenant: str) -> list[SessionSummary]:
        sandboxes, found, after = self._served.tenants.of(tenant), [], None
        while True:
            page = await sandboxes.sessions(limit=_PAGE, after=after)
            found += page.sessions
            after = page.next
            if not after:
                return found


async def _first(signed: Signed, tokens: Mapping[Candidate, str]) -> Candidate | None:
    """In slices: anybody can ask, and others are served in between."""
    for number, (candidate, token) in enumerate(list(tokens.items()), start=1):
        if signed.fits(token):
            return candidate
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return None


def _by_tenant(holders: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tenant, key_id in holders:
        found.setdefault(tenant, []).append(key_id)
    return found
