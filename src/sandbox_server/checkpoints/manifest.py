"""The manifest of a checkpoint, which says what it is a copy of and where its files are stored; and
the catalogue of those there are."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox_sdk.protocol.errors import CheckpointDamaged, CheckpointNotFound, NotFound
from sandbox_sdk.protocol.models import Checkpoint, LeftOutFile
from sandbox_server.storage.history import moment
from sandbox_server.storage.objects import ObjectStore

FORMAT = 1


class Segment(NamedTuple):
    digest: str
    """sha256 of its bytes."""
    size: int
    stored: int
    """Bytes that it takes in the store."""


class DiskCopy(BaseModel):
    """/workspace, as a copy of its disk on the machine of the worker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    file: str
    """Its own, also of a call that is repeated while the first one goes on."""
    provider: str
    size: int
    used: int
    inodes: int
    owner: int
    """The uid that its files have."""


class Manifest(BaseModel):
    """A later version may add fields: they are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    checkpoint_id: str
    tenant: str
    thread_id: str
    session_id: str
    generation: int
    name: str | None = None
    metadata: Mapping[str, str] = {}
    automatic: bool = False
    """Made by the server, which may delete it."""
    created_at: float
    parent: str | None = None
    """The checkpoint that its session began with, or the last one of it."""
    environment: str | None = None
    asked: Mapping[str, Any] = {}
    """What its session was made with, so that one from here can have the same."""
    cwd: str | None = None
    files: int
    folders: int
    size: int
    added: int
    """Bytes that the store had not had before."""
    running: list[str] = []
    left_out: list[LeftOutFile] = []
    left_out_more: int = 0
    paused_ms: float = 0.0
    segments: Annotated[list[Segment], Field(min_length=1)]
    disk: DiskCopy | None = None
    """Else /workspace is in the segments."""

    def answer(self) -> Checkpoint:
        fields = {name: getattr(self, name) for name in Checkpoint.model_fields}
        return Checkpoint(**{**fields, "created_at": moment(self.created_at)})


def new_id() -> str:
    """Sorts by time."""
    return f"cp-{int(time.time() * 1000):012x}-{os.urandom(5).hex()}"


def folder_of(tenant: str) -> str:
    """Tenants share nothing, not even equal files: one could tell what another has."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def decoded(data: bytes, checkpoint_id: str) -> Manifest:
    """Raises CheckpointDamaged."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as exc:
        raise damaged(checkpoint_id, "its description cannot be read") from exc
    if manifest.format > FORMAT:
        raise damaged(checkpoint_id, "a later version has made it: upgrade this server")
    return manifest


def damaged(checkpoint_id: str, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"checkpoint {checkpoint_id} cannot be used: {why}")


def not_found(checkpoint_id: str) -> CheckpointNotFound:
    """The same for one of another tenant as for none at all."""
    return CheckpointNotFound(
        f"no checkpoint {checkpoint_id!r}: it was deleted, or never was; list them to see which"
        " there are"
    )


log = structlog.get_logger()

REMEMBERED = 2000
"""Manifests in memory, of all tenants."""
_READ_AT_ONCE = 16
_ID = re.compile(r"cp-[0-9a-f]{12}-[0-9a-f]{10}")


class Catalogue:
    """A manifest is written once, last, and never changed, so that a checkpoint is there as a whole
    or not at all, and can be remembered."""

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
