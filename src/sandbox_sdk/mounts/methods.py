"""The methods of clients about mounts."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio

from sandbox_sdk import transfer
from sandbox_sdk.connection import Connection
from sandbox_sdk.mounts.bases import Base, Bases
from sandbox_sdk.mounts.changes import MountChanges
from sandbox_sdk.mounts.comparing import Comparison, Wanted
from sandbox_sdk.mounts.copying import Marks
from sandbox_sdk.mounts.entries import Here
from sandbox_sdk.mounts.returned import Returned
from sandbox_sdk.protocol.errors import FileMissing, FileTooLarge, InvalidPath, NotFound, size_text
from sandbox_sdk.protocol.models import Target
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes

MAX_RETURNED = 4 << 30
"""Bytes that a folder may have when it comes back, as an archive."""


class MountMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def diff(self) -> MountChanges:
        """What the sandbox has changed in its mounts, from the folders of this machine as they are
        now. `str()` of the answer is a patch. What apply() would leave alone has a `conflict`.

        Raises NotFound if the sandbox has no mount of this machine, or no more.
        """
        return await _compared(self._connection, Wanted())

    async def apply(self, *, force: bool = False, dry_run: bool = False) -> MountChanges:
        """Bring what the sandbox has changed in its mounts to the folders of this machine.

        Each file is replaced as a whole. One that was changed here too since it was copied is left
        alone, and has a `conflict` in the answer.

        force: replace those as well.
        dry_run: change nothing; the answer is what would be done.
        """
        return await _compared(self._connection, Wanted(act=not dry_run, force=force))


async def _compared(connection: Connection, wanted: Wanted) -> MountChanges:
    sandboxes, target = await connection.ready()
    session = await sandboxes.session(target)
    # Of this session alone: a new one of the thread, without the copy, has removed nothing.
    target = Target(session_id=session.session_id)
    bases, all_of_it = Bases(), MountChanges([], [])
    copy_ids = (await Marks.of(sandboxes, target)).whole
    found = await anyio.to_thread.run_sync(_loaded, bases, copy_ids, session.thread_id)
    for copy_id, base in found:
        done = await _compare_one(sandboxes, target, base, wanted)
        all_of_it.changes.extend(done.changes)
        all_of_it.left_out.extend(done.left_out)
        if wanted.act:
            save = partial(bases.save, copy_id, base, thread_id=session.thread_id)
            await anyio.to_thread.run_sync(save)
    if not found:
        raise NotFound(
            f"the sandbox of thread {session.thread_id} has no copy of a folder of this machine;"
            " SandboxClient(mounts=…) makes one, and it ends with its session"
        )
    return all_of_it


def _loaded(bases: Bases, copy_ids: list[str], thread_id: str) -> list[tuple[str, Base]]:
    """The copies that this machine knows of, by their places."""
    loaded = [(each, bases.load(each, thread_id)) for each in copy_ids]
    found = [(copy_id, base) for copy_id, base in loaded if base is not None]
    return sorted(found, key=lambda each: each[1].mount.path)


async def _compare_one(
    sandboxes: Sandboxes, target: Target, base: Base, wanted: Wanted
) -> Comparison:
    if not base.mount.source.is_dir():
        raise FileMissing(f"{base.mount.source} was copied, and is no folder of this machine now")
    with tempfile.TemporaryDirectory(prefix="sandbox-mount-") as folder:
        async with sandboxes.download_file(target, base.mount.path) as download:
            if download.info.type != "directory":
                raise InvalidPath(f"{base.mount.path} is no folder any more in the sandbox")
            bounded = Download(download.info, _bounded(download))
            archive = await transfer.save(bounded, Path(folder, "folder.tar"), warn=False)
        return await anyio.to_thread.run_sync(_compare, archive, base, wanted)


def _compare(archive: Path, base: Base, wanted: Wanted) -> Comparison:
    with Returned(archive) as there, Here(base.mount.source) as here:
        comparison = Comparison(base, there, here, wanted)
        comparison.run()
        return comparison


async def _bounded(download: Download) -> AsyncIterator[bytes]:
    """A sandbox must not be able to fill the disk here. Raises FileTooLarge."""
    left = MAX_RETURNED
    async for chunk in download.chunks:
        left -= len(chunk)
        if left < 0:
            raise FileTooLarge(
                f"{download.info.path} has more than {size_text(MAX_RETURNED)} in the sandbox:"
                " remove what is not to come back, or copy single files with download_file()"
            )
        yield chunk
