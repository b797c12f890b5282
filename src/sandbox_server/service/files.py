"""Handlers of the file operations."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import PurePosixPath

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import DiskFull, FileTooLarge, size_text
from sandbox_sdk.protocol.operations import Handlers
from sandbox_sdk.protocol.sandboxes import Download
from sandbox_server.metrics.recorder import Metrics
from sandbox_server.runtime.agent import ListEnd
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.answers import ServiceFacts, download_info, file_entry
from sandbox_server.service.points import Before
from sandbox_server.sessions.live import LiveSession


class FileHandlers:
    def __init__(self, access: SessionAccess, facts: ServiceFacts) -> None:
        self._access = access
        self._facts = facts
        self.handlers: Handlers = {
            op.LIST_FILES: self._list_files,
            op.RENAME: self._rename,
            op.STAT: self._stat,
            op.MKDIR: self._mkdir,
            op.REMOVE: self._remove,
            op.WATCH: self._watch,
            op.WATCH_EVENTS: self._watch_events,
            op.UNWATCH: self._unwatch,
        }

    async def upload(
        self, tenant: str, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        session, _ = await self._access.open(tenant, request)
        digest, size = hashlib.sha256(), 0
        limit = self._facts.limits.upload_limit_bytes

        async def hashed() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                session.bytes_in += len(chunk)
                if size > limit:
                    raise FileTooLarge.upload(request.path, limit_bytes=limit)
                yield chunk

        async with self._changing(session, f"upload {request.path}", "upload"):
            try:
                stored = await session.agent.put(
                    request.path, hashed(), limit=limit, metadata=request.metadata
                )
            finally:
                self._access.table.notes.metrics.uploaded(size)
        return models.UploadResult(
            filename=PurePosixPath(stored.path).name,
            path=stored.path,
            size=stored.size,
            sha256=digest.hexdigest(),
        )

    @contextlib.asynccontextmanager
    async def download(
        self, tenant: str, request: models.DownloadRequest
    ) -> AsyncIterator[Download]:
        session = await self._access.table.find(tenant, request)
        async with (
            self._access.using(session),
            session.agent.get(request.path, digest=True) as file,
        ):
            counted = _counted(file, session, self._access.table.notes.metrics)
            yield Download(download_info(file.about), counted)

    async def _list_files(self, tenant: str, request: models.ListRequest) -> models.ListResult:
        session, _ = await self._access.open(tenant, request)
        entries: list[models.FileEntry] = []
        batches = session.agent.batches(
            request.path, recursive=request.recursive, depth=request.depth, limit=request.limit
        )
        async with self._access.using(session), contextlib.aclosing(batches):
            async for batch in batches:
                if isinstance(batch, ListEnd):
                    return models.ListResult(
                        path=request.path, entries=entries, truncated=batch.truncated
                    )
                entries += map(file_entry, batch)
        raise AssertionError("a listing ends or raises")

    async def _rename(self, tenant: str, request: models.RenameRequest) -> models.FileEntry:
        session = await self._access.table.find(tenant, request)
        text = f"rename {request.path} to {request.to}"
        async with self._changing(session, text, "rename"):
            moved = await session.agent.rename(request.path, request.to, replace=request.replace)
        return file_entry(moved)

    async def _stat(self, tenant: str, request: models.StatRequest) -> models.FileEntry:
        session, _ = await self._access.open(tenant, request)
        async with self._access.using(session):
            return file_entry(await session.agent.stat(request.path, follow=request.follow))

    async def _mkdir(self, tenant: str, request: models.MkdirRequest) -> models.MkdirResult:
        session, _ = await self._access.open(tenant, request)
        async with self._changing(session, f"mkdir {request.path}", "mkdir"):
            made = await session.agent.mkdir(request.path)
        return models.MkdirResult(created=made.created, entry=file_entry(made.entry))

    async def _remove(self, tenant: str, request: models.RemoveRequest) -> models.RemoveResult:
        session = await self._access.table.find(tenant, request)
        async with self._changing(session, f"remove {request.path}", "remove"):
            await session.agent.remove(request.path, recursive=request.recursive)
        return models.RemoveResult(path=request.path)

    async def _watch(self, tenant: str, request: models.WatchFilesRequest) -> models.FileWatch:
        session, _ = await self._access.open(tenant, request)
        async with self._access.using(session):
            watch = await session.agent.watch(request.path, recursive=request.recursive)
        return models.FileWatch(session_id=session.record.session_id, **dict(watch))

    async def _watch_events(
        self, tenant: str, request: models.FileChangesRequest
    ) -> models.FileChangeList:
        """No use of the session: one that is only watched expires."""
        session = await self._access.table.find(tenant, request)
        async with self._access.reporting_loss(session):
            found = await session.agent.watched(
                request.watch_id, after=request.after, wait_s=request.wait
            )
        return models.FileChangeList(
            events=[models.FileChange(**dict(each)) for each in found.events],
            position=found.position,
        )

    async def _unwatch(self, tenant: str, request: models.FileWatchTarget) -> models.FileWatchEnded:
        session = await self._access.table.find(tenant, request)
        async with self._access.reporting_loss(session):
            return models.FileWatchEnded(ended=await session.agent.unwatch(request.watch_id))

    @contextlib.asynccontextmanager
    async def _changing(
        self, session: LiveSession, text: str, what: models.PointOf
    ) -> AsyncIterator[None]:
        """What changes files: with a point before it, where the session has a history."""
        keeper = self._access.table.keeper
        async with self._access.using(session), Before(keeper, session, text, what=what):
            try:
                yield
            except DiskFull as exc:
                raise self._with_setting(exc, session) from None

    def _with_setting(self, error: DiskFull, session: LiveSession) -> DiskFull:
        """The box does not know by which setting its disk has its size."""
        if not error.message.startswith(models.WORKSPACE):
            return error
        limit = self._facts.limits_of(session).disk_bytes
        usual = limit == self._facts.limits.disk_bytes
        by = "SANDBOX_DISK_LIMIT of the server" if usual else "limits.disk of the session"
        setting = f"its size is {by}, {size_text(limit)}"
        return DiskFull(f"{error.message}; {setting}", limit_bytes=limit)


async def _counted(
    chunks: AsyncIterable[bytes], session: LiveSession, metrics: Metrics
) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        session.bytes_out += len(chunk)
        metrics.downloaded(len(chunk))
        yield chunk
