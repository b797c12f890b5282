"""Tokens of an identity provider (JWT), checked against its public keys (JWKS)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, Self

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.access.keys import SCOPES, TENANT, Caller, Scope
from sandbox_server.tasks import stop

log = structlog.get_logger()

ALGORITHMS = ("RS256", "ES256", "EdDSA")
REFRESH_S = 300.0
AGAIN_S = 10.0
"""Between two looks for a key that is not there yet."""
LEEWAY_S = 30.0
"""By how much clocks may differ."""
_PREFIX = "sandbox:"
_KNOWN = 1000
_LONGEST = 16 * 1024


class Source(Protocol):
    """Where the public keys are."""

    async def read(self) -> bytes | None:
        """None if nothing has changed. Raises OSError."""

    refresh_s: float


@dataclass
class JwksFile:
    path: Path
    refresh_s: float = 0.5
    _seen: tuple[int, int] | None = None

    async def read(self) -> bytes | None:
        status = self.path.stat()
        seen = status.st_mtime_ns, status.st_size
        if seen == self._seen:
            return None
        text = self.path.read_bytes()
        self._seen = seen
        return text


@dataclass
class JwksUrl:
    url: str
    refresh_s: float = REFRESH_S

    async def read(self) -> bytes | None:
        import httpx

        try:
            async with httpx.AsyncClient(timeout=10.0) as client:
                answer = await client.get(self.url)
                answer.raise_for_status()
                return answer.content
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise OSError(f"{type(exc).__name__}: {exc}") from exc


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a token has to say."""

    issuer: str | None = None
    audience: str | None = None
    tenant: str = "tenant"
    scopes: str = "scope"


class Tokens:
    """Use as an async context manager: it reads the keys again inside."""

    def __init__(
        self, source: Source, claims: Claims, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises InvalidRequest where PyJWT is not installed."""
        try:
            import jwt
        except ModuleNotFoundError as exc:
            raise InvalidRequest(
                f"tokens need `pip install 'agent-sandbox[jwt]'` ({exc})"
            ) from None
        self._jwt = jwt
        self._source = source
        self._claims = claims
        self._clock = clock
        self._keys: dict[str | None, Any] = {}
        self._known: dict[bytes, tuple[float, Caller]] = {}
        self._wanted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Tokens by {len(self._keys)} keys>"

    async def __aenter__(self) -> Self:
        """Raises RuntimeUnavailable, InvalidRequest."""
        try:
            await self.look()
        except OSError as exc:
            raise RuntimeUnavailable(f"the keys of tokens cannot be read: {exc}") from exc
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(self._watching)

    def caller(self, token: bytes) -> Caller | None:
        """None for what is no valid token. Its cause is logged, without the token."""
        if token.count(b".") != 2 or len(token) > _LONGEST:
            return None
        digest = sha256(token).digest()
        ends, caller = self._known.get(digest, (0.0, None))
        if caller is not None and self._clock() < ends:
            return caller
        try:
            claims = self._checked(token.decode("ascii", "replace"))
            caller = self._caller(claims)
        except (self._jwt.PyJWTError, ValueError) as exc:
            log.info("token.refused", why=f"{type(exc).__name__}: {exc}"[:200])
            return None
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[digest] = float(claims["exp"]) + LEEWAY_S, caller
        return caller

    def _checked(self, token: str) -> dict[str, Any]:
        named = self._jwt.get_unverified_header(token).get("kid")
        key = self._keys.get(named)
        if key is None and named is None and len(self._keys) == 1:
            (key,) = self._keys.values()
        if key is None:
            self._wanted.set()
            raise ValueError("it is signed with a key that is not among the provider's")
        return self._jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm_name],  # Of the key, not what the token says.
            issuer=self._claims.issuer,
            audience=self._claims.audience,
            leeway=LEEWAY_S,
            options={
                "require": ["exp"],
                "verify_aud": self._claims.audience is not None,
                "verify_iat": False,
            },
        )

    def _caller(self, claims: dict[str, Any]) -> Caller:
        tenant = _at(claims, self._claims.tenant)
        if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
            raise ValueError(f"its claim {self._claims.tenant} does not name a tenant")
        subject = str(claims.get("sub", ""))[:128]
        return Caller.of(tenant, _scopes(_at(claims, self._claims.scopes)), subject)

    async def look(self) -> None:
        """Raises OSError, InvalidRequest."""
        text = await self._source.read()
        if text is not None:
            self._keys = self._parsed(text)
            self._known.clear()

    def _parsed(self, text: bytes) -> dict[str | None, Any]:
        try:
            entries = json.loads(text)["keys"]
            found = {}
            for entry in entries:
                if entry.get("use", "sig") != "sig":
                    continue
                with contextlib.suppress(self._jwt.PyJWTError):
                    key = self._jwt.PyJWK.from_dict(entry)
                    if key.algorithm_name in ALGORITHMS:
                        found[entry.get("kid")] = key
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise InvalidRequest(f"the keys of tokens are no JWKS: {exc!r}"[:300]) from None
        if not found:
            raise InvalidRequest(f"the JWKS has no key for {', '.join(ALGORITHMS)}")
        return found

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._source.refresh_s):
                    await self._wanted.wait()
                    await asyncio.sleep(min(AGAIN_S, self._source.refresh_s / 2))
            self._wanted.clear()
            try:
                await self.look()
            except (OSError, InvalidRequest) as exc:
                log.warning("tokens.not_read", why=str(exc)[:200])


def _at(claims: dict[str, Any], path: str) -> Any:
    """The claim of this name, or the one at a path with dots."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _scopes(value: Any) -> Sequence[Scope]:
    """As a text with spaces or as a list; with or without `sandbox:` before them. Those of others
    are ignored."""
    names = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    given = {str(name).removeprefix(_PREFIX) for name in names}
    return [scope for scope in SCOPES if scope in given]
