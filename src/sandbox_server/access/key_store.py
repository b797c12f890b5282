"""Where keys are kept: a SQLite file of one server, or the Redis of a fleet."""

from __future__ import annotations

import functools
import json
import os
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox_sdk.protocol.errors import NotFound
from sandbox_server.access.keys import Key
from sandbox_server.private import private_file, private_folder
from sandbox_server.storage.database import Database

if TYPE_CHECKING:
    from sandbox_server.fleet.store import Store  # Slow to import, and only for a fleet.

_SECRET_BYTES = 32
_SCHEMA = """
create table if not exists keys (
    key_id text primary key,
    record text not null
)
"""
_FIELDS = frozenset(each.name for each in fields(Key))


class KeyStore(ABC):
    """Every method may raise RuntimeUnavailable."""

    secret: bytes
    """With which digests are keyed."""

    @abstractmethod
    async def version(self) -> object:
        """Another one after every change, whoever made it. Cheap."""

    @abstractmethod
    async def all(self) -> list[Key]: ...

    @abstractmethod
    async def put(self, *keys: Key) -> None:
        """Add keys, or replace those of the same id, all at once."""

    @abstractmethod
    async def close(self) -> None: ...

    async def get(self, key_id: str) -> Key:
        """Raises NotFound."""
        for key in await self.all():
            if key.key_id == key_id:
                return key
        raise NotFound(f"no key {key_id!r}; `sandbox keys list` lists them")


class SqliteKeys(KeyStore):
    """Of one server and all its processes."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made before there is a key. Raises OSError."""
        self._folder = folder
        self._path = folder / "keys.sqlite"
        self._opened: Database | None = None
        self._changes = 0

    @functools.cached_property
    def secret(self) -> bytes:  # type: ignore[override]
        return _secret_in(self._folder / "keys.secret")

    @property
    def _database(self) -> Database:
        if self._opened is None:
            private_folder(self._folder)
            self._opened = Database(self._path, _SCHEMA)
        return self._opened

    async def version(self) -> object:
        if self._opened is None and not self._path.exists():
            return None
        # Counts commits of other connections only.
        ((count,),) = self._database.execute("pragma data_version")
        return count, self._changes

    async def all(self) -> list[Key]:
        if self._opened is None and not self._path.exists():
            return []
        rows = self._database.execute("select record from keys")
        return [_decoded(record) for (record,) in rows]

    async def put(self, *keys: Key) -> None:
        sql = "insert or replace into keys (key_id, record) values (?, ?)"
        self._database.write([(sql, (key.key_id, _encoded(key))) for key in keys])
        self._changes += 1

    async def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class RedisKeys(KeyStore):
    """Of a fleet. The secret comes from the fleet key, which all its servers have."""

    def __init__(self, store: Store, fleet_key: str) -> None:
        self.secret = blake2b(fleet_key.encode(), person=b"api keys", digest_size=32).digest()
        self._store = store

    async def version(self) -> object:
        return await self._store.keys_version()

    async def all(self) -> list[Key]:
        return [_decoded(record) for record in await self._store.api_keys()]

    async def put(self, *keys: Key) -> None:
        await self._store.put_api_keys({key.key_id: _encoded(key) for key in keys})

    async def close(self) -> None:
        await self._store.close()


def _secret_in(path: Path) -> bytes:
    """Of several processes that make it at once, one does, and all read what it wrote."""
    if not path.exists():
        private_folder(path.parent)
        made = path.with_name(f"{path.name}.{os.getpid()}.new")
        private_file(made)
        made.write_bytes(os.urandom(_SECRET_BYTES))
        try:
            os.link(made, path)
        except FileExistsError:
            pass
        finally:
            made.unlink()
    return path.read_bytes()


def _encoded(key: Key) -> str:
    return json.dumps({**asdict(key), "digest": b64encode(key.digest).decode()})


def _decoded(text: str) -> Key:
    """Without fields of a later version."""
    record: dict[str, Any] = {
        name: value for name, value in json.loads(text).items() if name in _FIELDS
    }
    return Key(
        **{**record, "digest": b64decode(record["digest"]), "scopes": tuple(record["scopes"])}
    )
