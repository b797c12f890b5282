"""The volumes of a fleet. Each lies on one worker: what needs it goes there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import Conflict, RuntimeUnavailable
from sandbox_sdk.protocol.operations import Handlers, Operation
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.router import Router
from sandbox_server.volumes.volumes import not_found

OfAll = Callable[
    [str, Operation[models.EmptyRequest, models.VolumeList], models.EmptyRequest],
    Awaitable[tuple[list[models.VolumeList], list[str]]],
]
"""The answers of all workers, and the names of those that do not answer."""


class AllVolumes:
    def __init__(self, directory: Directory, router: Router, of_all: OfAll) -> None:
        self._directory = directory
        self._router = router
        self._of_all = of_all
        self.handlers: Handlers = {
            op.VOLUMES: self._list,
            op.CREATE_VOLUME: self._create,
            op.DELETE_VOLUME: self._delete,
        }

    async def _list(self, tenant: str, request: models.EmptyRequest) -> models.VolumeList:
        """Those of every worker that answers; the others are named in the result."""
        found, silent = await self._of_all(tenant, op.VOLUMES, request)
        every = [volume for each in found for volume in each.volumes]
        return models.VolumeList(
            volumes=sorted(every, key=lambda volume: (volume.name, volume.worker)),
            quota=max((each.quota for each in found), default=0),
            unreachable=silent,
        )

    async def _create(self, tenant: str, request: models.CreateVolumeRequest) -> models.Volume:
        """On the worker with the most room for sessions."""
        if await self.having(tenant, [request.name]) is not None:
            raise Conflict(f"there is a volume {request.name!r} already; delete it first")
        here = await self._directory.here()
        if not here:
            raise RuntimeUnavailable("no worker answers; try again", retry_after_s=2)
        roomiest = max(here, key=lambda worker: worker.room)
        return await self._router.ask(roomiest, tenant, op.CREATE_VOLUME, request)

    async def _delete(self, tenant: str, request: models.VolumeTarget) -> models.VolumeDeleted:
        having = await self.having(tenant, [request.name])
        if having is None:
            raise not_found(request.name)
        for worker in await self._directory.workers():
            if worker.id in having:
                await self._router.ask(worker, tenant, op.DELETE_VOLUME, request)
        return models.VolumeDeleted(name=request.name)

    async def having(self, tenant: str, names: Collection[str]) -> frozenset[str] | None:
        """The workers that have all of these volumes that there are; None if there is none of them.

        Raises Conflict if no worker has them together, RuntimeUnavailable if a worker that may have
        one does not answer.
        """
        listed = await self._list(tenant, models.EmptyRequest())
        by_name: dict[str, set[str]] = {}
        for volume in listed.volumes:
            by_name.setdefault(volume.name, set()).add(volume.worker)
        found = [frozenset(by_name[name]) for name in names if name in by_name]
        if len(found) < len(names) and listed.unreachable:
            raise RuntimeUnavailable(
                f"worker {listed.unreachable[0]} may have a volume of {', '.join(names)}, and does"
                " not answer; retry in 2 s",
                retry_after_s=2,
            )
        if not found:
            return None
        if not (together := frozenset.intersection(*found)):
            raise Conflict(f"the volumes {', '.join(names)} are on different workers")
        return together
