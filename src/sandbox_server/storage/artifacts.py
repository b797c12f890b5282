"""Artifacts: which files are kept of whom, until when, and how much of them."""

from __future__ import annotations

import contextlib
import mimetypes
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import FileTooLarge, NotFound, size_text
from sandbox_sdk.protocol.models import Artifact, ArtifactList, ArtifactsRequest, DownloadInfo
from sandbox_sdk.protocol.sandboxes import Download
from sandbox_server.storage.database import Database
from sandbox_server.storage.store import FolderStore

log = structlog.get_logger()

SCHEMA = """
create table if not exists artifacts (
    number integer primary key autoincrement, artifact_id text not null unique,
    tenant text not null, thread_id text not null, session_id text not null, path text not null,
    size integer not null, sha256 text not null, created_at real not null
);
create index if not exists artifacts_of on artifacts (tenant, session_id, path);
create index if not exists artifacts_thread on artifacts (tenant, thread_id, number);
create index if not exists artifacts_bytes on artifacts (sha256);
create index if not exists artifacts_age on artifacts (created_at);
create table if not exists unused (sha256 text primary key);
"""
_COLUMNS = "artifact_id, thread_id, session_id, path, size, sha256, created_at"
_OCTETS = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Whose file it is."""

    tenant: str
    thread_id: str
    session_id: str


class Artifacts:
    """The artifacts of one worker. Its name is part of their ids, so that a coordinator finds
    them."""

    def __init__(
        self,
        store: FolderStore,
        database: Database,
        *,
        worker: str,
        quota_bytes: int,
        retention_s: float,
    ) -> None:
        """quota_bytes: of one tenant. The database needs SCHEMA."""
        self._store = store
        self._db = database
        self._worker = worker
        self._quota = quota_bytes
        self._retention_s = retention_s

    async def keep(
        self, origin: Origin, path: str, size: int, chunks: AsyncIterable[bytes]
    ) -> Artifact:
        """Store a file. If it is there already, under this path and of this session, that one is
        meant. Raises FileTooLarge if it alone is over the quota; otherwise the oldest go."""
        self._check_size(path, size)
        stored = await self._store.put(self._bounded(path, chunks))
        found = self._rows(
            "where tenant = ? and session_id = ? and path = ? and sha256 = ?",
            origin.tenant, origin.session_id, path, stored.digest,
        )  # fmt: skip
        if found:
            return found[0]
        artifact_id = f"{uuid.uuid4().hex}@{self._worker}"
        self._db.execute(
            f"insert into artifacts (tenant, {_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",
            origin.tenant, artifact_id, origin.thread_id, origin.session_id, path, stored.size,
            stored.digest, time.time(),
        )  # fmt: skip
        await self._make_room(origin.tenant)
        return self._rows("where artifact_id = ?", artifact_id)[0]

    def find(self, tenant: str, request: ArtifactsRequest) -> ArtifactList:
        where, values = "where tenant = ?", [tenant]
        for column in ("thread_id", "session_id"):
            if (value := getattr(request, column)) is not None:
                where += f" and {column} = ?"
                values.append(value)
        order = f"order by number desc limit {request.limit + 1}"
        found = self._rows(f"{where} {order}", *values)
        return ArtifactList(artifacts=found[: request.limit], truncated=len(found) > request.limit)

    def stored(self, tenant: str) -> int:
        """Bytes that those of a tenant take."""
        ((size,),) = self._db.execute(
            "select coalesce(sum(size), 0) from artifacts where tenant = ?", tenant
        )
        return int(size)

    def get(self, tenant: str, artifact_id: str) -> Artifact:
        """Raises NotFound, also for one of another tenant."""
        found = self._rows("where tenant = ? and artifact_id = ?", tenant, artifact_id)
        if not found:
            raise no_artifact(artifact_id)
        return found[0]

    @contextlib.asynccontextmanager
    async def download(self, tenant: str, artifact_id: str) -> AsyncIterator[Download]:
        """Raises NotFound."""
        found = self.get(tenant, artifact_id)
        async with self._store.open(found.sha256) as chunks:
            yield Download(download_info(found), chunks)

    async def delete(self, tenant: str, artifact_id: str) -> None:
        """Raises NotFound."""
        self.get(tenant, artifact_id)
        await self._forget("artifact_id = ?", artifact_id)

    async def tidy(self) -> None:
        """Delete those past their retention, and bytes that nothing refers to any more."""
        old = time.time() - self._retention_s
        ((count,),) = self._db.execute("select count(*) from artifacts where created_at < ?", old)
        if count:
            log.info("artifacts.expired", count=count, retention_s=self._retention_s)
        await self._forget("created_at < ?", old)

    async def _make_room(self, tenant: str) -> None:
        """Delete the oldest of a tenant until the rest is within the quota."""
        rows = self._db.execute(
            "select artifact_id, size from (select artifact_id, number, size,"
            " sum(size) over (order by number desc) as so_far from artifacts where tenant = ?)"
            " where so_far > ?",
            tenant, self._quota,
        )  # fmt: skip
        if rows:
            freed = sum(size for _, size in rows)
            log.info("artifacts.over_quota", tenant=tenant, deleted=len(rows), bytes=freed,
                     quota_bytes=self._quota)  # fmt: skip
            for artifact_id, _ in rows:
                await self._forget("artifact_id = ?", artifact_id)

    async def _forget(self, where: str, value: object) -> None:
        """Delete rows, and their bytes unless others refer to the same."""
        with self._db.transaction() as execute:
            execute(
                f"insert or ignore into unused select sha256 from artifacts where {where}", value
            )
            execute(f"delete from artifacts where {where}", value)
        for (digest,) in self._db.execute(
            "select sha256 from unused where sha256 not in (select sha256 from artifacts)"
        ):
            if await self._store.delete(digest):
                self._db.execute("delete from unused where sha256 = ?", digest)
        self._db.execute("delete from unused where sha256 in (select sha256 from artifacts)")

    def _check_size(self, path: str, size: int) -> None:
        if size > self._quota:
            raise FileTooLarge(
                f"{path} is not kept: artifacts of a tenant may have {size_text(self._quota)}"
                " together (SANDBOX_ARTIFACT_QUOTA of the server); make it smaller, or download it"
                " from the sandbox",
                limit_bytes=self._quota,
            )

    async def _bounded(self, path: str, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            self._check_size(path, size)
            yield chunk

    def _rows(self, where: str, *values: str) -> list[Artifact]:
        rows = self._db.execute(f"select {_COLUMNS} from artifacts {where}", *values)
        return [_artifact(row) for row in rows]


def no_artifact(artifact_id: str) -> NotFound:
    """The same for one of another tenant as for none at all."""
    return NotFound(
        f"no artifact {artifact_id[:200]!r}: it was deleted, is past its retention, or never was;"
        " list the artifacts to see those there are"
    )


def worker_of(artifact_id: str) -> str:
    """The worker that has an artifact."""
    return artifact_id.rpartition("@")[2]


def download_info(artifact: Artifact) -> DownloadInfo:
    return DownloadInfo(
        filename=PurePosixPath(artifact.path).name,
        path=artifact.path,
        type="file",
        size=artifact.size,
        sha256=artifact.sha256,
        modified_at=artifact.created_at,
    )


def _artifact(row: tuple[Any, ...]) -> Artifact:
    found = dict(zip(_COLUMNS.split(", "), row, strict=True))
    created_at = datetime.fromtimestamp(found.pop("created_at"), UTC)
    mime = mimetypes.guess_type(found["path"])[0] or _OCTETS
    return Artifact(**found, mime=mime, created_at=created_at)
