"""Handlers of the file operations."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import PurePosixPath

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import DiskFull, FileTooLarge, size_text
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    DownloadRequest,
    FileEntry,
    ListRequest,
    ListResult,
    RenameRequest,
    UploadRequest,
    UploadResult,
)
from sandbox_sdk.protocol.operations import Handlers
from sandbox_sdk.protocol.sandboxes import Download
from sandbox_server.metrics.recorder import Metrics
from sandbox_server.runtime.agent import ListEnd
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.answers import ServiceFacts, download_info, file_entry
from sandbox_server.service.points import Before
from sandbox_server.sessions.live import LiveSession


async def counting(data: AsyncIterator[bytes], metrics: Metrics) -> AsyncIterator[bytes]:
    async for piece in data:
        metrics.downloaded(len(piece))
        yield piece


class FileHandlers:
    def __init__(self, access: SessionAccess, facts: ServiceFacts) -> None:
        self._access = access
        self._facts = facts
        self.handlers: Handlers = {
            op.LIST_FILES: self._list_files,
            op.RENAME: self._rename,
        }

    async def upload(
        self, tenant: str, request: UploadRequest, chunks: AsyncIterable[bytes]
    ) -> UploadResult:
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

        async with (
            self._access.using(session),
            Before(self._access.table.keeper, session, f"upload {request.path}", what="upload"),
        ):
            try:
                stored = await session.agent.put(request.path, hashed(), limit=limit)
            except DiskFull as exc:
                raise self._with_setting(exc, session) from None
            finally:
                self._access.table.notes.metrics.uploaded(size)
        return UploadResult(
            filename=PurePosixPath(stored.path).name,
            path=stored.path,
            size=stored.size,
            sha256=digest.hexdigest(),
        )

    @contextlib.asynccontextmanager
    async def download(self, tenant: str, request: DownloadRequest) -> AsyncIterator[Download]:
        session = await self._access.table.find(tenant, request)
        async with (
            self._access.using(session),
            session.agent.get(request.path, digest=True) as file,
        ):
            counted = counting(_counted(session, file), self._access.table.notes.metrics)
            yield Download(download_info(file.about), counted)

    async def _list_files(self, tenant: str, request: ListRequest) -> ListResult:
        session, _ = await self._access.open(tenant, request)
        entries: list[FileEntry] = []
        batches = session.agent.batches(
            request.path, recursive=request.recursive, limit=request.limit
        )
        async with self._access.using(session), contextlib.aclosing(batches):
            async for batch in batches:
                if isinstance(batch, ListEnd):
                    return ListResult(path=request.path, entries=entries, truncated=batch.truncated)
                entries += map(file_entry, batch)
        raise AssertionError("a listing ends or raises")

    async def _rename(self, tenant: str, request: RenameRequest) -> FileEntry:
        session = await self._access.table.find(tenant, request)
        text = f"rename {request.path} to {request.to}"
        async with (
            self._access.using(session),
            Before(self._access.table.keeper, session, text, what="rename"),
        ):
            moved = await session.agent.rename(request.path, request.to, replace=request.replace)
        return file_entry(moved)

    def _with_setting(self, error: DiskFull, session: LiveSession) -> DiskFull:
        """The box does not know by which setting its disk has its size."""
        if not error.message.startswith(WORKSPACE):
            return error
        limit = self._facts.limits_of(session).disk_bytes
        usual = limit == self._facts.limits.disk_bytes
        by = "SANDBOX_DISK_LIMIT of the server" if usual else "limits.disk of the session"
        setting = f"its size is {by}, {size_text(limit)}"
        return DiskFull(f"{error.message}; {setting}", limit_bytes=limit)


async def _counted(session: LiveSession, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        session.bytes_out += len(chunk)
        yield chunk
