"""Handlers of what stays after a session: its artifacts, and what is remembered of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError, SessionLost
from sandbox_sdk.protocol.operations import Handlers
from sandbox_sdk.protocol.sandboxes import Download
from sandbox_server.runtime.agent import FileEntry
from sandbox_server.sessions.live import LiveSession
from sandbox_server.storage.artifacts import Artifacts, Origin
from sandbox_server.storage.history import stored_detail
from sandbox_server.storage.storage import Storage

MOST_FILES = 100
"""Most artifacts of one run."""
MOST_LISTED = 1000


@dataclass
class Collected:
    """What was kept of a run, and what was not."""

    artifacts: list[models.Artifact] = field(default_factory=list)
    artifact_problems: list[models.ArtifactProblem] = field(default_factory=list)

    def failed(self, path: str, error: SandboxError) -> None:
        self.artifact_problems.append(
            models.ArtifactProblem(path=path, code=error.code, message=error.message)
        )


class StoredHandlers:
    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self.handlers: Handlers = {
            op.ARTIFACTS: self._list,
            op.DELETE_ARTIFACT: self._delete,
            op.STORED_SESSIONS: self._sessions,
            op.STORED_SESSION: self._session,
        }

    async def collect(
        self, session: LiveSession, command_id: str, *, marked_only: bool
    ) -> Collected:
        """Keep the files that a run has made; see BoxAgent.changes. What fails is told in the
        result, only the loss of the box raises."""
        collected = Collected()
        try:
            found = await session.agent.changes(
                command_id, marked_only=marked_only, limit=MOST_FILES
            )
        except SessionLost:
            raise
        except SandboxError as exc:
            collected.failed(models.WORKSPACE, exc)
            return collected
        for entry in found.entries:
            await self._keep(session, entry, collected)
        if found.truncated:
            more = f"more files were changed than are kept of one run, which are {MOST_FILES}"
            collected.failed(models.WORKSPACE, InvalidRequest(f"{more}; pack them with tar"))
        return collected

    async def _keep(self, session: LiveSession, entry: FileEntry, into: Collected) -> None:
        record = session.record
        origin = Origin(
            tenant=record.tenant, thread_id=record.thread_id, session_id=record.session_id
        )
        path = entry.path.encode("utf-8", "replace").decode()
        try:
            if path != entry.path:
                raise InvalidRequest(f"{path} is not kept: its name is not UTF-8; rename it")
            async with session.agent.get(entry.path) as file:
                kept = await self._artifacts.keep(origin, path, file.about.size or 0, file)
                into.artifacts.append(kept)
        except SessionLost:
            raise
        except SandboxError as exc:
            into.failed(path, exc)

    @contextlib.asynccontextmanager
    async def download(
        self, tenant: str, request: models.ArtifactTarget
    ) -> AsyncIterator[Download]:
        async with self._artifacts.download(tenant, request.artifact_id) as download:
            yield download

    async def _list(self, tenant: str, request: models.ArtifactsRequest) -> models.ArtifactList:
        return self._artifacts.find(tenant, request)

    async def _delete(self, tenant: str, request: models.ArtifactTarget) -> models.ArtifactDeleted:
        await self._artifacts.delete(tenant, request.artifact_id)
        return models.ArtifactDeleted(artifact_id=request.artifact_id)

    async def _sessions(
        self, tenant: str, request: models.StoredSessionsRequest
    ) -> models.StoredSessionList:
        await self._opened.journal.flush()
        return await self._opened.history.find(tenant, request)

    async def _session(
        self, tenant: str, request: models.StoredSessionTarget
    ) -> models.StoredSessionDetail:
        await self._opened.journal.flush()
        wanted = models.ArtifactsRequest(session_id=request.session_id, limit=MOST_LISTED)
        found = self._artifacts.find(tenant, wanted)
        return await stored_detail(
            self._opened.history, tenant, request.session_id, found.artifacts
        )

    @property
    def _opened(self) -> Storage:
        if self._storage is None:
            raise InvalidRequest("this server stores nothing beyond its sessions")
        return self._storage

    @property
    def _artifacts(self) -> Artifacts:
        return self._opened.artifacts
