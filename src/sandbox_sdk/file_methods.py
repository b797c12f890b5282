"""The methods of clients about files that are looked at, made, removed and watched."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import anyio

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    FileChange,
    FileChangesRequest,
    FileEntry,
    FileWatch,
    FileWatchTarget,
    MkdirResult,
    WatchFilesRequest,
    checked,
)
from sandbox_sdk.protocol.operations import UNWATCH, WATCH, WATCH_EVENTS
from sandbox_sdk.protocol.sandboxes import WATCH_S, Sandboxes

_END_S = 2.0


class FileMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def stat(self, path: str, *, follow: bool = False) -> FileEntry:
        """What is at a path: type, size, mode, owner, time, and where a link leads.

        follow: of a link, what it leads to. Raises FileMissing.
        """
        sandboxes, target = await self._connection.ready()
        return await sandboxes.stat(target, path, follow=follow)

    async def mkdir(self, path: str) -> MkdirResult:
        """Make a folder, with those on the way; `created` says whether it was not there before.

        Raises InvalidPath where a file is in the way.
        """
        sandboxes, target = await self._connection.ready()
        return await sandboxes.mkdir(target, path)

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a file, a link (not what it leads to), or a folder with all in it.

        recursive: False for a folder only if it is empty. Raises FileMissing, InvalidPath.
        """
        sandboxes, target = await self._connection.ready()
        await sandboxes.remove(target, path, recursive=recursive)

    async def watch_files(
        self, path: str = WORKSPACE, *, recursive: bool = False
    ) -> AsyncGenerator[FileChange]:
        """What changes in a folder, as it changes and without an end.

        recursive: also in folders below, new ones included. `path` of a change is relative to the
        folder. Changes that are missing are told by one of kind `gap`: look at the folder then.
        It goes on over broken connections and a restarted server, and raises SessionLost or
        SessionNotFound when the sandbox ends, which being watched does not put off.
        """
        sandboxes, target = await self._connection.ready()
        request = checked(WatchFilesRequest, **dict(target), path=path, recursive=recursive)
        watch = await sandboxes.call(WATCH, request)
        position = watch.position
        try:
            while True:
                found = await sandboxes.call(WATCH_EVENTS, _after(watch, position))
                for change in found.events:
                    yield change
                position = found.position
        finally:
            await _end(sandboxes, watch)


def _after(watch: FileWatch, position: int) -> FileChangesRequest:
    return FileChangesRequest(
        session_id=watch.session_id, watch_id=watch.watch_id, after=position, wait=WATCH_S
    )


async def _end(sandboxes: Sandboxes, watch: FileWatch) -> None:
    """It would end by itself a few minutes later."""
    request = FileWatchTarget(session_id=watch.session_id, watch_id=watch.watch_id)
    with anyio.move_on_after(_END_S, shield=True), contextlib.suppress(SandboxError):
        await sandboxes.call(UNWATCH, request)
