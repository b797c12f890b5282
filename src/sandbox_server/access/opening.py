"""Opens what says who may call, from the settings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from hashlib import blake2b
from pathlib import Path

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.access.key_store import KeyStore, RedisKeys, SqliteKeys
from sandbox_server.access.known_keys import KnownKeys
from sandbox_server.access.limiter import Limiter, MemoryLimiter, RedisLimiter
from sandbox_server.access.tokens import Claims, JwksFile, JwksUrl, Tokens
from sandbox_server.settings import Settings
from sandbox_server.settings.limit_rules import LimitRules


def open_key_store(settings: Settings) -> KeyStore:
    """Of one server, or of a fleet. Close it. Raises InvalidRequest."""
    if settings.role == "standalone":
        return SqliteKeys(settings.state_folder())
    from sandbox_server.fleet.store import Store

    fleet_key = settings.fleet_key.get_secret_value()
    if not fleet_key:
        raise InvalidRequest("keys of a fleet need SANDBOX_FLEET_KEY, which protects them")
    return RedisKeys(Store.open(settings.redis(), namespace=settings.redis_namespace), fleet_key)


@contextlib.asynccontextmanager
async def open_keys(settings: Settings) -> AsyncIterator[KnownKeys | None]:
    """None for a worker, whose callers are coordinators, and a fleet without a key."""
    if settings.role == "worker" or not can_store(settings):
        yield None
        return
    async with KnownKeys(open_key_store(settings)) as known:
        yield known


def can_store(settings: Settings) -> bool:
    return settings.role == "standalone" or bool(settings.fleet_key.get_secret_value())


def has_token_secret(settings: Settings) -> bool:
    """Whether all servers share a secret that callers do not know, where callers need keys."""
    return settings.role == "standalone" or bool(_shared(settings)) or not settings.jwt_keys


def token_secret(settings: Settings) -> bytes:
    """For tokens that all servers of a fleet, and all processes of one, can check."""
    if settings.role == "standalone":
        shared = SqliteKeys(settings.state_folder()).secret
    else:
        shared = _shared(settings).encode()
    # Without any key everybody may do everything, so there is nothing to keep.
    return blake2b(shared, person=b"e2b tokens", digest_size=32).digest()


def _shared(settings: Settings) -> str:
    """What all coordinators of a fleet are told."""
    return settings.fleet_key.get_secret_value() or settings.api_keys.get_secret_value()


@contextlib.asynccontextmanager
async def open_tokens(settings: Settings) -> AsyncIterator[Tokens | None]:
    """Raises InvalidRequest, RuntimeUnavailable."""
    if settings.role == "worker" or not settings.jwt_keys:
        yield None
        return
    where = settings.jwt_keys
    source = JwksUrl(where) if where.startswith(("https://", "http://")) else JwksFile(Path(where))
    claims = Claims(
        issuer=settings.jwt_issuer or None,
        audience=settings.jwt_audience or None,
        tenant=settings.jwt_tenant,
        scopes=settings.jwt_scopes,
    )
    async with Tokens(source, claims) as tokens:
        yield tokens


async def has_keys(settings: Settings) -> bool:
    """Whether callers need one. Raises RuntimeUnavailable."""
    if settings.api_keys.get_secret_value() or settings.jwt_keys:
        return True
    if not can_store(settings):
        return False
    store = open_key_store(settings)
    try:
        return bool(await store.all())
    finally:
        await store.close()


def limit_rules(settings: Settings) -> LimitRules:
    return LimitRules.parse(settings.tenant_limits)


@contextlib.asynccontextmanager
async def open_limiter(settings: Settings) -> AsyncIterator[Limiter | None]:
    """None where nobody has limits."""
    if not limit_rules(settings):
        yield None
    elif settings.role == "standalone":
        yield MemoryLimiter()
    else:
        from sandbox_server.fleet.store import Store

        async with Store.open(settings.redis(), namespace=settings.redis_namespace) as store:
            yield RedisLimiter(store, settings.name())
