"""What is asked of all workers of a fleet, or of any: lists, and what is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
)
from sandbox_sdk.protocol.operations import Ans, Handlers, Operation, Req
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.checkpoints.manifest import not_found
from sandbox_server.events.log import EventLog
from sandbox_server.fleet.all_events import since
from sandbox_server.fleet.all_volumes import AllVolumes
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.router import Router
from sandbox_server.fleet.workers import Presence, Worker
from sandbox_server.storage.artifacts import no_artifact, worker_of
from sandbox_server.storage.history import History, stored_detail
from sandbox_server.usage.figures import day_of
from sandbox_server.usage.prices import Prices
from sandbox_server.usage.report import UsageRows, report

log = structlog.get_logger()

_LIST_S = 5.0
"""Timeout for a worker to list its sessions."""
_ALL_OF_SESSION = 1000
"""Most artifacts that are told of one session."""
_Answer = TypeVar("_Answer")


class FleetUsage(NamedTuple):
    rows: UsageRows
    prices: Prices


class AllWorkers:
    def __init__(
        self,
        directory: Directory,
        router: Router,
        history: History | None = None,
        usage: FleetUsage | None = None,
        events: EventLog | None = None,
    ) -> None:
        """events: what happens at this coordinator itself; None if nothing does."""
        self._usage_of_all = usage
        self.events = events
        self._directory = directory
        self._router = router
        self._history = history
        self.volumes = AllVolumes(directory, router, self._of_all)
        self.handlers: Handlers = {
            op.SESSIONS: self._sessions,
            op.REGISTRY: self._registry,
            op.ARTIFACTS: self._artifacts,
            op.DELETE_ARTIFACT: self._delete_artifact,
            op.USAGE: self._usage,
            op.EVENTS: self._events,
            op.STORED_SESSIONS: self._stored_sessions,
            op.STORED_SESSION: self._stored_session,
            op.CHECKPOINTS: self._checkpoints,
            op.GET_CHECKPOINT: partial(self._at_keeper, op.GET_CHECKPOINT),
            op.DELETE_CHECKPOINT: partial(self._at_keeper, op.DELETE_CHECKPOINT),
            **self.volumes.handlers,
        }

    async def _sessions(self, tenant: str, request: models.SessionsRequest) -> models.SessionList:
        """The sessions of every worker that answers; the others are named in the result."""
        found, silent = await self._of_all(tenant, op.SESSIONS, request)
        every = (session for each in found for session in each.sessions)
        page = request.page(every, more=any(each.next for each in found))
        return page.model_copy(update={"unreachable": silent})

    async def _registry(self, tenant: str, request: models.EmptyRequest) -> models.RegistryList:
        """That of any worker: they are meant to have the same files. Raises RuntimeUnavailable."""
        for worker in await self._directory.here():
            try:
                async with asyncio.timeout(_LIST_S):
                    return await self._router.ask(worker, tenant, op.REGISTRY, request)
            except (RuntimeUnavailable, TimeoutError) as exc:
                log.warning("worker.not_listed", worker=worker.id, why=str(exc))
        raise RuntimeUnavailable("no worker answers; try again", retry_after_s=2)

    async def _artifacts(
        self, tenant: str, request: models.ArtifactsRequest
    ) -> models.ArtifactList:
        """The newest of every worker that answers; the others are named in the result."""
        found, silent = await self._of_all(tenant, op.ARTIFACTS, request)
        every = [artifact for each in found for artifact in each.artifacts]
        every.sort(key=lambda artifact: artifact.created_at, reverse=True)
        return models.ArtifactList(
            artifacts=every[: request.limit],
            truncated=len(every) > request.limit or any(each.truncated for each in found),
            unreachable=silent,
        )

    async def _delete_artifact(
        self, tenant: str, request: models.ArtifactTarget
    ) -> models.ArtifactDeleted:
        keeper = await self.keeper(request.artifact_id)
        return await self._router.ask(keeper, tenant, op.DELETE_ARTIFACT, request)

    async def keeper(self, artifact_id: str) -> Worker:
        """The worker that has an artifact. Raises NotFound, RuntimeUnavailable while it is away."""
        name = worker_of(artifact_id)
        for worker in await self._directory.workers():
            if worker.id == name and self._directory.presence(worker) != Presence.GONE:
                if self._directory.presence(worker) == Presence.HERE:
                    return worker
                raise RuntimeUnavailable(
                    f"worker {name} has the artifact and is away; retry in 2 s", retry_after_s=2
                )
        raise no_artifact(artifact_id)

    async def _stored_sessions(
        self, tenant: str, request: models.StoredSessionsRequest
    ) -> models.StoredSessionList:
        remembered = self._remembered
        await self.have_written(tenant)
        return await remembered.find(tenant, request)

    async def _stored_session(
        self, tenant: str, request: models.StoredSessionTarget
    ) -> models.StoredSessionDetail:
        """Raises SessionNotFound."""
        remembered = self._remembered
        await self.have_written(tenant)
        found = await stored_detail(remembered, tenant, request.session_id, [])
        wanted = models.ArtifactsRequest(session_id=request.session_id, limit=_ALL_OF_SESSION)
        listed = await self._artifacts(tenant, wanted)
        return found.model_copy(update={"artifacts": listed.artifacts})

    async def _checkpoints(
        self, tenant: str, request: models.CheckpointsRequest
    ) -> models.CheckpointList:
        """Those of every worker that answers, each once: workers may have one store together."""
        found, silent = await self._of_all(tenant, op.CHECKPOINTS, request)
        every = {each.checkpoint_id: each for answer in found for each in answer.checkpoints}
        newest = sorted(every.values(), key=lambda each: each.created_at, reverse=True)
        return models.CheckpointList(
            checkpoints=newest[: request.limit],
            truncated=len(newest) > request.limit or any(each.truncated for each in found),
            unreachable=silent,
        )

    async def keepers(self, tenant: str, checkpoint_id: str) -> frozenset[str] | None:
        """The workers that have a checkpoint; None for any. Raises CheckpointNotFound, and
        RuntimeUnavailable if a worker that may have it does not answer."""
        workers = await self._directory.expected()
        asked = models.CheckpointTarget(checkpoint_id=checkpoint_id)
        answers = await asyncio.gather(*(self._has(w, tenant, asked) for w in workers))
        found = {w.id for w, has in zip(workers, answers, strict=True) if has}
        if not found and None in answers:
            raise RuntimeUnavailable(
                f"a worker that may have checkpoint {checkpoint_id} does not answer; retry in 2 s",
                retry_after_s=2,
            )
        if not found:
            raise not_found(checkpoint_id)
        return frozenset(found)

    async def having(self, tenant: str, volumes: Sequence[str]) -> frozenset[str] | None:
        """The workers that have these volumes; None for any. See AllVolumes."""
        return await self.volumes.having(tenant, volumes)

    async def _has(
        self, worker: Worker, tenant: str, asked: models.CheckpointTarget
    ) -> bool | None:
        """Whether a worker has a checkpoint; None if it does not answer."""

        async def has(sandboxes: Sandboxes) -> bool:
            try:
                await sandboxes.call(op.GET_CHECKPOINT, asked)
            except CheckpointNotFound:
                return False
            except CheckpointDamaged:
                return True  # It tells the caller.
            return True

        return await self._of(worker, tenant, has)

    async def _at_keeper(
        self,
        operation: Operation[models.CheckpointTarget, Ans],
        tenant: str,
        request: models.CheckpointTarget,
    ) -> Ans:
        """The answer of a worker that has the checkpoint."""
        keepers = await self.keepers(tenant, request.checkpoint_id)
        workers = await self._directory.workers()
        keeper = next(w for w in workers if keepers is None or w.id in keepers)
        return await self._router.ask(keeper, tenant, operation, request)

    async def _usage(self, tenant: str, request: models.UsageRequest) -> models.UsageReport:
        """From what workers have written, those that are gone too."""
        if self._usage_of_all is None:
            raise InvalidRequest("this server does not count what is used")
        silent = await self.have_counted(tenant)
        known, prices = self._usage_of_all
        found = await report(known, tenant, request, prices, today=day_of(time.time()))
        return found.model_copy(update={"unreachable": silent})

    async def _events(self, tenant: str, request: models.HappeningsRequest) -> models.HappeningList:
        workers = await self._directory.workers()
        there = {w.id: w for w in workers if self._directory.presence(w) == Presence.HERE}
        away = [w.id for w in workers if self._directory.presence(w) == Presence.AWAY]
        own = self.events

        async def ask(name: str, asked: models.HappeningsRequest) -> models.HappeningList | None:
            if own is not None and name == own.worker:
                return await own.since(tenant, asked)
            try:
                return await self._router.ask(there[name], tenant, op.EVENTS, asked)
            except RuntimeUnavailable as exc:
                log.warning("worker.not_listed", worker=name, why=str(exc))
                return None

        names = [*there, own.worker] if own is not None else list(there)
        return await since(names, away, ask, request)

    async def have_counted(self, tenant: str) -> list[str]:
        """Have every worker write what its sessions have used up to now; those that do not
        answer."""
        asked = models.UsageRequest(by="total")
        _, silent = await self._of_all(tenant, op.USAGE, asked)
        return silent

    async def have_written(self, tenant: str) -> None:
        """Have every worker write what it holds of the history, as it does before it answers:
        what a caller has seen happen is in it."""
        asked = models.StoredSessionsRequest(limit=1)
        await self._of_all(tenant, op.STORED_SESSIONS, asked)

    @property
    def _remembered(self) -> History:
        if self._history is None:
            raise InvalidRequest("this server stores nothing beyond its sessions")
        return self._history

    async def _of_all(
        self, tenant: str, operation: Operation[Req, Ans], request: Req
    ) -> tuple[list[Ans], list[str]]:
        """The answers of all workers, and the names of those that do not answer."""

        async def ask(sandboxes: Sandboxes) -> Ans:
            return await sandboxes.call(operation, request)

        expected = await self._directory.expected()
        answers = await asyncio.gather(*(self._of(w, tenant, ask) for w in expected))
        silent = [w.id for w, found in zip(expected, answers, strict=True) if found is None]
        return [answer for answer in answers if answer is not None], sorted(silent)

    async def _of(
        self, worker: Worker, tenant: str, ask: Callable[[Sandboxes], Awaitable[_Answer]]
    ) -> _Answer | None:
        """None if the worker does not answer."""
        if self._directory.presence(worker) == Presence.AWAY:
            return None
        try:
            async with asyncio.timeout(_LIST_S):
                with self._router.client(worker) as client:
                    return await ask(client.of(tenant))
        except (SandboxError, TimeoutError) as exc:
            log.warning("worker.not_listed", worker=worker.id, why=str(exc))
            return None
