"""Servers whose callers have keys: alone, of several processes, and a fleet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

import httpx

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_server.access.key_store import KeyStore, RedisKeys, SqliteKeys
from sandbox_server.access.known_keys import MadeKey, create
from sandbox_server.fleet.store import Store
from tests.fleet.fleet import GRACE_S, KEY, Fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import PATIENCE_S, ServerProcess, running

PLACES = ["alone", "processes", "fleet"]


@dataclass
class KeyPlace:
    server: ServerProcess
    """That callers reach."""
    makes_boxes: ServerProcess
    keys: dict[str, MadeKey]
    store: KeyStore

    def of(self, name: str, *, retry_for_s: float = 0) -> RemoteBackend:
        return RemoteBackend(self.server.url, api_key=self.keys[name].text, retry_for_s=retry_for_s)

    def id_of(self, name: str) -> str:
        return self.keys[name].key.key_id

    async def taken_up(self, key: str, *, valid: bool) -> None:
        """Returns when all processes agree: each new connection is for one of them."""
        agreed = 0
        async with asyncio.timeout(PATIENCE_S):
            while agreed < 10:
                async with httpx.AsyncClient(base_url=self.server.url) as http:
                    asked = await http.get("/sessions", headers={"x-api-key": key})
                agreed = agreed + 1 if (asked.status_code != 401) == valid else 0

    async def restart(self) -> None:
        """After a kill -9."""
        await self.makes_boxes.stop()
        await self.makes_boxes.start()
        await self.makes_boxes.healthy()


@asynccontextmanager
async def key_place(
    kind: str, folder: Path, redis: RedisServer, settings: dict[str, str], *names: str
) -> AsyncIterator[KeyPlace]:
    """With a key of the tenant acme for each name. `{name}` in a setting is the id of its key."""
    store: KeyStore = SqliteKeys(folder)
    if kind == "fleet":
        store = RedisKeys(Store.open(redis.url), KEY)
    try:
        keys = {
            name: await create(store, tenant="acme", name=name, scopes=("use",), now=time())
            for name in names
        }
        ids = {name: made.key.key_id for name, made in keys.items()}
        given = {name: text.format(**ids) for name, text in settings.items()}
        async with _serving(kind, folder, redis, given) as (server, makes_boxes):
            yield KeyPlace(server, makes_boxes, keys, store)
    finally:
        await store.close()


@asynccontextmanager
async def _serving(
    kind: str, folder: Path, redis: RedisServer, settings: dict[str, str]
) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    if kind != "fleet":
        count = "2" if kind == "processes" else "1"
        async with running("bubblewrap", folder, SANDBOX_PROCESSES=count, **settings) as alone:
            await alone.healthy()
            yield alone, alone
        return
    fleet = Fleet("bubblewrap", folder, redis, grace_s=GRACE_S)
    try:
        worker = fleet.process("worker", **settings)
        await fleet.run([worker], [fleet.process("coordinator", **settings)])
        yield fleet.coordinators[0], worker
    finally:
        await fleet.close()
