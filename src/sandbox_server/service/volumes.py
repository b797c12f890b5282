"""Handlers of volumes."""

from __future__ import annotations

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.operations import Handlers
from sandbox_server.service.answers import ServiceFacts, at
from sandbox_server.sessions.table import SessionTable
from sandbox_server.sessions.volumes import require_free, uses
from sandbox_server.volumes.store import StoredVolume
from sandbox_server.volumes.volumes import Volumes


class VolumeHandlers:
    def __init__(self, table: SessionTable, facts: ServiceFacts, volumes: Volumes | None) -> None:
        self._table = table
        self._facts = facts
        self._there = volumes
        self.handlers: Handlers = {
            op.VOLUMES: self._list,
            op.CREATE_VOLUME: self._create,
            op.DELETE_VOLUME: self._delete,
        }

    @property
    def _volumes(self) -> Volumes:
        if self._there is None:
            raise InvalidRequest("this server has no volumes")
        return self._there

    async def _list(self, tenant: str, _request: models.EmptyRequest) -> models.VolumeList:
        found = await self._volumes.of(tenant)
        return models.VolumeList(
            volumes=[self._answer(tenant, each) for each in found], quota=self._volumes.quota
        )

    async def _create(self, tenant: str, request: models.CreateVolumeRequest) -> models.Volume:
        return self._answer(tenant, await self._volumes.create(tenant, request.name, request.size))

    async def _delete(self, tenant: str, request: models.VolumeTarget) -> models.VolumeDeleted:
        all_of_it = models.VolumeMount(name=request.name, path=models.WORKSPACE)
        await require_free(self._table.sessions(), (tenant, ""), [all_of_it])
        await self._volumes.delete(tenant, request.name)
        return models.VolumeDeleted(name=request.name)

    def _answer(self, tenant: str, volume: StoredVolume) -> models.Volume:
        return models.Volume(
            name=volume.name,
            size=volume.size,
            used=volume.used,
            created_at=at(volume.made_at),
            worker=self._facts.worker_id,
            mounted_by=uses(self._table.sessions(), tenant, volume.name),
        )
