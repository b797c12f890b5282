"""Routes calls to the process that has the thread, as a coordinator does to workers.

The table of processes is fixed, and who has a session is in the SQLite file they share.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import Misdirected, SandboxError
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes
from sandbox_server import __version__
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.fleet.all_workers import AllWorkers
from sandbox_server.fleet.directory import Directory, Location
from sandbox_server.fleet.router import Attempt, Router, WorkerClient
from sandbox_server.fleet.routing import RoutedSandboxes, RoutedTenants
from sandbox_server.fleet.workers import Presence, Worker
from sandbox_server.service import SandboxService
from sandbox_server.sessions.previews import SessionPreviews
from sandbox_server.sessions.registry import Record, Status
from sandbox_server.sessions.share import Share
from sandbox_server.sessions.sqlite import SqliteRegistry

_HEALTH_S = 2.0
"""Timeout for a process to tell how it is doing."""
_SHARED = ("artifacts", "platform")
"""Tags of operations on what all processes store together: each can answer for all."""
_OF_FILES = (
    op.REGISTRY,
    op.CHECKPOINTS,
    op.GET_CHECKPOINT,
    op.DELETE_CHECKPOINT,
    op.CREATE_VOLUME,
    op.DELETE_VOLUME,
)
"""Others of what all processes have together."""
_WRITTEN_LATER = (op.STORED_SESSIONS, op.STORED_SESSION)
"""Of what each process writes a moment after it happened."""


class Processes(Directory):
    """The processes of one server, and which of them has a session."""

    def __init__(self, registry: SqliteRegistry, share: Share, urls: Sequence[str]) -> None:
        self.share = share
        self.all = [Worker(id=share.of(index).owner, url=url) for index, url in enumerate(urls)]
        self._registry = registry

    def index_of(self, tenant: str, target: models.Target) -> int:
        """The process for a target: the one that has its session, or may begin one."""
        record = self._registry.find(tenant, target)
        if record is not None and record.status == Status.LIVE:
            return self.share.process_of(record.worker)
        if target.thread_id is None:
            return self.share.index  # Any can tell how the session ended.
        return self.share.begins_at(tenant, target.thread_id)

    async def locate(self, tenant: str, target: models.Target) -> Location:
        record = self._registry.find(tenant, target)
        if record is None or record.status != Status.LIVE:
            return Location(record)
        return Location(record, self.all[self.share.process_of(record.worker)], Presence.HERE)

    async def with_asked(self, record: Record) -> Record:
        return record

    async def previews_of(self, session_id: str) -> SessionPreviews | None:
        return self._registry.previews.of(session_id)

    async def workers(self) -> list[Worker]:
        return self.all

    def presence(self, worker: Worker) -> Presence:  # noqa: ARG002
        """Always here: one that has ended is restarted at once, and calls are repeated."""
        return Presence.HERE

    def missing(self, workers: Sequence[Worker]) -> list[str]:  # noqa: ARG002
        return []


class ProcessRouter(Router):
    """A new thread begins at the process that its name chooses, a thread without one here."""

    def __init__(
        self, processes: Processes, connect: Callable[[str], WorkerClient], *, patience_s: float
    ) -> None:
        super().__init__(processes, connect, patience_s=patience_s)
        self._processes = processes

    async def _place(self, attempt: Attempt) -> Worker:
        if attempt.refusal is not None:  # Room is counted for all processes together.
            raise attempt.refusal
        if attempt.target is None:
            return self._processes.all[self._processes.share.index]
        return self._processes.all[self._processes.index_of(attempt.tenant, attempt.target)]


class _AllProcesses(AllWorkers):
    def __init__(self, processes: Processes, router: ProcessRouter) -> None:
        super().__init__(processes, router)
        self._name = processes.share.name
        self.handlers = {**self.handlers, op.VOLUMES: self._volumes}

    async def _volumes(self, tenant: str, request: models.EmptyRequest) -> models.VolumeList:
        """Each process lists all of them, and knows which of its own threads have them."""
        found, silent = await self._of_all(tenant, op.VOLUMES, request)
        by_name: dict[str, list[models.Volume]] = {}
        for volume in (volume for each in found for volume in each.volumes):
            by_name.setdefault(volume.name, []).append(volume)
        merged = []
        for _, same in sorted(by_name.items()):
            uses = sorted((u for each in same for u in each.mounted_by), key=lambda u: u.thread_id)
            merged.append(same[0].model_copy(update={"worker": self._name, "mounted_by": uses}))
        quota = max((each.quota for each in found), default=0)
        return models.VolumeList(volumes=merged, quota=quota, unreachable=silent)

    async def keepers(self, tenant: str, checkpoint_id: str) -> frozenset[str] | None:  # noqa: ARG002
        """Any: they have one store together."""
        return None

    async def having(self, tenant: str, volumes: Sequence[str]) -> frozenset[str] | None:  # noqa: ARG002
        """Any: they have one folder of volumes together."""
        return None


class ProcessTenants(RoutedTenants):
    """The sandboxes of all processes: this one's at hand, the others' through their sockets."""

    def __init__(
        self,
        processes: Processes,
        router: ProcessRouter,
        service: SandboxService,
        *,
        capacity: int,
    ) -> None:
        super().__init__(processes, router, coordinator_id=processes.share.name)
        self.all = _AllProcesses(processes, router)
        self._processes = processes
        self._service = service
        self._capacity = capacity

    def of(self, tenant: str) -> Sandboxes:
        return _OfTenant(self, self._router, tenant, self._service)

    async def health(self) -> models.Health:
        """Of the whole server: degraded while a process is being restarted."""
        found = await asyncio.gather(*map(self._health_of, self._processes.all))
        here = [health for health in found if health is not None]
        checks = {"runtime": "ok", "capacity": "ok"}
        for health in here:
            checks |= {name: state for name, state in health.checks.items() if state != "ok"}
        for index, answer in enumerate(found):
            checks[f"process {index}"] = "restarting" if answer is None else "ok"
        well = all(state == "ok" for state in checks.values())
        unable = all(health.status == "unhealthy" for health in here)
        return models.Health(
            status="healthy" if well else "unhealthy" if unable else "degraded",
            role="standalone",
            worker_id=self._processes.share.name,
            runtime=self._service.facts.runtime,
            pool_size=sum(health.pool_size for health in here),
            active_sessions=sum(health.active_sessions for health in here),
            capacity=self._capacity,
            version=__version__,
            uptime_s=max((health.uptime_s for health in here), default=0.0),
            checks=checks,
            providers=list(self._service.facts.by_provider),
            workers=[
                self._worker_health(*each) for each in zip(self._processes.all, found, strict=True)
            ],
        )

    def _worker_health(self, process: Worker, health: models.Health | None) -> models.WorkerHealth:
        """health: None while it is restarted. Room is counted for all of them together."""
        return models.WorkerHealth(
            worker_id=process.id,
            state="restarting" if health is None else "serving",
            runtime=self._service.facts.runtime,
            sessions=0 if health is None else health.active_sessions,
            capacity=self._capacity,
            warm=0 if health is None else health.pool_size,
            version=__version__,
        )

    async def _health_of(self, worker: Worker) -> models.Health | None:
        """None if the process does not answer."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                return await self._router.ask(worker, SOLE_TENANT, op.HEALTH, models.EmptyRequest())
        except (SandboxError, TimeoutError):
            return None


class _OfTenant(RoutedSandboxes):
    def __init__(
        self, fleet: RoutedTenants, router: Router, tenant: str, service: SandboxService
    ) -> None:
        super().__init__(fleet, router, tenant)
        self._service = service
        self._here = service.of(tenant)

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        """Past the router where the thread is here: most calls come to the right process."""
        if operation is op.USAGE:
            silent = await self._fleet.all.have_counted(self._tenant)
            answer = await self._here.call(op.USAGE, cast("models.UsageRequest", request))
            return cast("Ans", answer.model_copy(update={"unreachable": silent}))
        if operation is op.EVENTS:  # Of all of them, whatever it asks for.
            return await super().call(operation, request)
        if operation in _WRITTEN_LATER:
            await self._fleet.all.have_written(self._tenant)
        if operation.tag in _SHARED or operation in _OF_FILES:
            return await self._here.call(operation, request)
        thread_id: str | None = getattr(request, "thread_id", None)
        if thread_id is not None and self._service.has(self._tenant, thread_id):
            try:
                return await self._here.call(operation, request)
            except Misdirected:
                pass  # Its session has ended meanwhile, and a new one begins elsewhere.
        return await super().call(operation, request)

    @contextlib.asynccontextmanager
    async def download(
        self, request: models.DownloadRequest | models.ArtifactTarget
    ) -> AsyncIterator[Download]:
        here = isinstance(request, models.ArtifactTarget)
        opened = self._here.download(request) if here else super().download(request)
        async with opened as download:
            yield download
