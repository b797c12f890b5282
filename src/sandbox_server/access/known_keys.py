"""The keys that a server knows now: what is stored, read again within a second of a change."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError
from sandbox_server.access.key_store import KeyStore
from sandbox_server.access.keys import Key, Scope, digest_of, id_of, new_key_text, same
from sandbox_server.tasks import stop

log = structlog.get_logger()

LOOK_S = 0.5


@dataclass(frozen=True)
class MadeKey:
    """A key with its text, which is nowhere else and told once."""

    key: Key
    text: str

    def __repr__(self) -> str:
        return f"<MadeKey {self.key!r}>"


class KnownKeys:
    """Use as an async context manager: it looks for changes inside."""

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._by_id: dict[str, Key] = {}
        self._version: object = None
        self.required = False
        """Whether there are keys, or were: a store that was emptied opens no door."""

    def __repr__(self) -> str:
        return f"<KnownKeys {len(self._by_id)}>"

    async def __aenter__(self) -> Self:
        """Raises RuntimeUnavailable."""
        await self.look()
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(self._watching)
        await self._store.close()

    def find(self, text: str) -> Key | None:
        """The valid key with this text. What is no key takes as long as a wrong one."""
        key = self._by_id.get(id_of(text) or "")
        if key is None:
            digest_of(text, self._store.secret)
            return None
        return key if same(key, text, self._store.secret) and key.is_valid(self._clock()) else None

    def by_id(self, key_id: str) -> Key | None:
        """The key of this id, valid or not."""
        return self._by_id.get(key_id)

    def is_valid(self, key: Key) -> bool:
        return key.is_valid(self._clock())

    def valid(self) -> list[Key]:
        return [key for key in self._by_id.values() if self.is_valid(key)]

    async def look(self) -> None:
        """Read what has changed."""
        version = await self._store.version()
        if version != self._version:
            self._by_id = {key.key_id: key for key in await self._store.all()}
            self._version = version
            self.required = self.required or bool(self._by_id)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            # What is known stays in force meanwhile.
            with contextlib.suppress(SandboxError):
                await self.look()


async def create(
    store: KeyStore,
    *,
    tenant: str,
    name: str,
    scopes: tuple[Scope, ...],
    now: float,
    expires_s: float | None = None,
) -> MadeKey:
    key_id, text = new_key_text()
    key = Key(
        key_id=key_id,
        tenant=tenant,
        name=name,
        scopes=scopes,
        digest=digest_of(text, store.secret),
        created_at=now,
        expires_at=None if expires_s is None else now + expires_s,
    )
    await store.put(key)
    return MadeKey(key, text)


async def revoke(store: KeyStore, key_id: str, *, now: float) -> Key:
    """At once, on all servers within a second. Raises NotFound."""
    key = await store.get(key_id)
    if key.revoked_at is None:
        key = replace(key, revoked_at=now)
        await store.put(key)
    return key


async def rotate(store: KeyStore, key_id: str, *, overlap_s: float, now: float) -> MadeKey:
    """A new key with what the old one has, which goes on for overlap_s. Raises NotFound,
    InvalidRequest for a key that is not valid any more."""
    old = await store.get(key_id)
    if not old.is_valid(now):
        raise InvalidRequest(f"key {key_id} is not valid any more: create another")
    if old.replaced_by is not None:
        raise InvalidRequest(f"key {key_id} has been replaced by {old.replaced_by} already")
    lasts_s = None if old.expires_at is None else old.expires_at - old.created_at
    new_id, text = new_key_text()
    new = replace(
        old,
        key_id=new_id,
        digest=digest_of(text, store.secret),
        created_at=now,
        expires_at=None if lasts_s is None else now + lasts_s,
    )
    ends = now + overlap_s
    old = replace(
        old,
        replaced_by=new_id,
        expires_at=ends if old.expires_at is None else min(ends, old.expires_at),
    )
    await store.put(new, old)
    return MadeKey(new, text)
