"""Opening the store of checkpoints, and keeping it tidy."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable, SandboxError
from sandbox_server.checkpoints.checkpoints import Checkpoints
from sandbox_server.checkpoints.images import Images
from sandbox_server.checkpoints.points import Points
from sandbox_server.storage.objects import FolderObjects, ObjectStore
from sandbox_server.tasks import stop

log = structlog.get_logger()

TIDY_EVERY_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    where: str
    """`folder`, `off`, or the address of a bucket."""
    quota: int
    retention_s: float


@contextlib.asynccontextmanager
async def open_checkpoints(
    settings: StoreSettings, folder: Path, *, images: Path | None = None, no_images: str = ""
) -> AsyncIterator[Checkpoints | None]:
    """None if they are off. images: a folder for copies of disks, where those cost nothing; not
    used with a bucket, whose checkpoints every worker can restore. no_images: why there is none.

    Raises InvalidRequest, RuntimeUnavailable.
    """
    store = open_store(settings.where, folder)
    if store is None:
        yield None
        return
    if settings.where != "folder":
        images, no_images = None, "every worker can restore them"
    checkpoints = Checkpoints(
        store,
        quota=settings.quota,
        retention_s=settings.retention_s,
        images=None if images is None else Images(images),
        about=_about(settings.where, no_images),
    )
    tidying = asyncio.create_task(_tidy(checkpoints.tidy))
    try:
        yield checkpoints
    finally:
        await stop(tidying)


@contextlib.asynccontextmanager
async def open_points(
    folder: Path | None, *, why_not: str, most_bytes: int, retention_s: float
) -> AsyncIterator[Points]:
    """folder: None where disks cannot be copied at no cost; why_not says why. most_bytes: of one
    thread. retention_s: of a thread that is not used any more."""
    points = Points(folder, why_not=why_not, most_bytes=most_bytes)
    tidying = asyncio.create_task(_tidy(lambda: points.tidy(retention_s)))
    try:
        yield points
    finally:
        await stop(tidying)


def _about(where: str, no_images: str) -> str:
    place = "in the state folder" if where == "folder" else f"in {where.partition('?')[0]}"
    return f"{place}, {f'file by file: {no_images}' if no_images else 'as copies of whole disks'}"


def open_store(where: str, folder: Path) -> ObjectStore | None:
    if where == "off":
        return None
    if where == "folder":
        try:
            return FolderObjects(folder)
        except OSError as exc:
            raise RuntimeUnavailable(
                f"the folder of checkpoints {folder} cannot be used: {exc}"
            ) from exc
    if where.startswith("s3://"):
        from sandbox_server.storage.s3 import S3Objects

        return S3Objects(where)
    raise InvalidRequest(
        f"SANDBOX_CHECKPOINTS {where!r} is neither folder, off, nor s3://BUCKET/PREFIX"
    )


async def _tidy(tidy: Callable[[], Awaitable[None]]) -> None:
    while True:
        # At another time than other workers with the same store.
        await asyncio.sleep(TIDY_EVERY_S * random.uniform(0.5, 1.0))
        try:
            await tidy()
        except SandboxError as exc:
            log.warning("checkpoints.not_tidied", why=exc.message)
