"""The catalogue: which checkpoints there are. A manifest is written once, last, and never changed,
so that a checkpoint is there as a whole or not at all, and can be remembered."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict

import structlog

from sandbox_sdk.protocol.errors import CheckpointDamaged, NotFound
from sandbox_server.checkpoints.manifest import Manifest, decoded, folder_of, not_found
from sandbox_server.storage.objects import ObjectStore

log = structlog.get_logger()

REMEMBERED = 2000
"""Manifests in memory, of all tenants."""
_READ_AT_ONCE = 16
_ID = re.compile(r"cp-[0-9a-f]{12}-[0-9a-f]{10}")


class Catalogue:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: OrderedDict[str, Manifest] = OrderedDict()
        self._slots = asyncio.Semaphore(_READ_AT_ONCE)
        self.unreadable: set[str] = set()
        """Folders of tenants with a manifest that cannot be read: a later version may have written
        it."""

    async def add(self, manifest: Manifest) -> None:
        name = _name(manifest.tenant, manifest.checkpoint_id)
        await self._store.put(name, manifest.model_dump_json(exclude_defaults=True).encode())
        self._remember(name, manifest)

    async def get(self, tenant: str, checkpoint_id: str) -> Manifest:
        """Raises CheckpointNotFound, CheckpointDamaged."""
        name = _name(tenant, checkpoint_id)
        try:
            manifest = decoded(await self._store.get(name), checkpoint_id)
        except NotFound:
            self._known.pop(name, None)
            raise not_found(checkpoint_id) from None
        self._remember(name, manifest)
        return manifest

    async def of(self, tenant: str) -> list[Manifest]:
        """All checkpoints of a tenant, newest first. A damaged one is left out, and logged."""
        prefix = f"{folder_of(tenant)}/checkpoints/"
        names = [each.name async for each in self._store.list(prefix)]
        found = await asyncio.gather(*map(self._manifest, names))
        return sorted(
            (each for each in found if each is not None),
            key=lambda manifest: (manifest.created_at, manifest.checkpoint_id),
            reverse=True,
        )

    async def delete(self, tenant: str, checkpoint_id: str) -> None:
        """Its segments are deleted later, if nothing else needs them. Raises CheckpointNotFound."""
        name = _name(tenant, checkpoint_id)
        if await self._store.look(name) is None:
            raise not_found(checkpoint_id)
        await self._store.delete(name)
        self._known.pop(name, None)

    async def tenant_of(self, name: str) -> str | None:
        """Whose checkpoint an object is."""
        manifest = await self._manifest(name)
        return None if manifest is None else manifest.tenant

    async def _manifest(self, name: str) -> Manifest | None:
        if (known := self._known.get(name)) is not None:
            return known
        checkpoint_id = name.rpartition("/")[2].removesuffix(".json")
        try:
            async with self._slots:
                manifest = decoded(await self._store.get(name), checkpoint_id)
        except NotFound:
            return None  # Deleted meanwhile.
        except CheckpointDamaged as exc:
            log.warning("checkpoint.damaged", checkpoint=checkpoint_id, why=exc.message)
            self.unreadable.add(name.partition("/")[0])
            return None
        self._remember(name, manifest)
        return manifest

    def _remember(self, name: str, manifest: Manifest) -> None:
        self._known[name] = manifest
        self._known.move_to_end(name)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _name(tenant: str, checkpoint_id: str) -> str:
    """Raises CheckpointNotFound for what is no id of ours."""
    if not _ID.fullmatch(checkpoint_id):
        raise not_found(checkpoint_id)
    return f"{folder_of(tenant)}/checkpoints/{checkpoint_id}.json"
