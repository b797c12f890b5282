"""All that a server stores beyond its sessions, opened and closed together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.storage import artifacts, sqlite_history
from sandbox_server.storage.artifacts import Artifacts
from sandbox_server.storage.database import Database
from sandbox_server.storage.history import History, Journal, Kept
from sandbox_server.storage.sqlite_history import SqliteHistory
from sandbox_server.storage.store import FolderStore
from sandbox_server.tasks import stop

log = structlog.get_logger()

TIDY_EVERY_S = 300.0


@dataclass(frozen=True, kw_only=True)
class StorageLimits:
    """How much is stored, and for how long."""

    history: Kept
    artifact_quota: int
    """Bytes of one tenant."""
    artifact_retention_s: float


@dataclass(frozen=True, kw_only=True)
class Storage:
    artifacts: Artifacts
    history: History
    journal: Journal


@contextlib.asynccontextmanager
async def open_storage(
    folder: Path, name: str, limits: StorageLimits, *, history: History | None = None
) -> AsyncIterator[Storage]:
    """folder: the state folder of the server called name. history: that of a fleet, which is
    elsewhere. Raises RuntimeUnavailable."""
    try:
        store = FolderStore(folder / f"{name}.artifacts")
        database = Database(
            folder / f"{name}.history", f"{artifacts.SCHEMA}\n{sqlite_history.SCHEMA}"
        )
    except OSError as exc:
        raise RuntimeUnavailable(f"the state folder {folder} cannot be used: {exc}") from exc
    kept = Artifacts(
        store,
        database,
        worker=name,
        quota_bytes=limits.artifact_quota,
        retention_s=limits.artifact_retention_s,
    )
    history = history or SqliteHistory(database, limits.history)
    try:
        journal = Journal(history, commands=limits.history.commands > 0)
        async with journal:
            storage = Storage(artifacts=kept, history=history, journal=journal)
            tidying = asyncio.create_task(_tidy(storage))
            try:
                yield storage
            finally:
                await stop(tidying)
    finally:
        database.close()


async def _tidy(storage: Storage) -> None:
    while True:
        try:
            await storage.artifacts.tidy()
            await storage.history.tidy()
        except RuntimeUnavailable as exc:
            log.warning("storage.not_tidied", why=exc.message)
        await asyncio.sleep(TIDY_EVERY_S)
