"""The methods of clients about checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Self

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.models import (
    Checkpoint,
    CheckpointRequest,
    CommandChanges,
    ForkRequest,
    HistoryEntry,
    RestoreRequest,
    Session,
    Undone,
    UndoRequest,
    checked,
)


class CheckpointMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def checkpoint(
        self,
        name: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        tmp: bool = True,
    ) -> Checkpoint:
        """Copy the files and the shell state of the sandbox, to go back to or to begin others from.

        What runs is paused for the moment, goes on, and is not in the copy: `running` names it.

        name: for people; need not be unique.
        metadata: text by name, at most 8 KiB.
        tmp: whether /tmp is in it, besides /workspace and the home folder.
        """
        sandboxes, target = await self._connection.ready()
        given = {"name": name, "metadata": dict(metadata or {}), "tmp": tmp}
        return await sandboxes.checkpoint(checked(CheckpointRequest, **dict(target), **given))

    async def checkpoints(self, *, limit: int = 100) -> list[Checkpoint]:
        """The checkpoints of this thread, newest first, also of ended sessions."""
        sandboxes, thread_id = await self._connection.thread()
        found = await sandboxes.checkpoints(thread_id=thread_id, limit=limit)
        return found.checkpoints

    async def delete_checkpoint(self, checkpoint: str | Checkpoint) -> None:
        """Delete a checkpoint. What began with it stays as it is."""
        sandboxes = await self._connection.opened()
        await sandboxes.delete_checkpoint(_id_of(checkpoint))

    async def rewind(self, checkpoint: str | Checkpoint) -> Session:
        """Take the thread back to a checkpoint, of this thread or another: files and shell state
        are as they were then. What runs now ends. If it fails, nothing has changed."""
        sandboxes, thread_id = await self._connection.thread()
        request = checked(RestoreRequest, thread_id=thread_id, checkpoint_id=_id_of(checkpoint))
        session = await sandboxes.restore(request)
        self._connection.has_moved(session)
        return session

    async def fork(
        self, into: int | Sequence[str] = 1, *, checkpoint: str | Checkpoint | None = None
    ) -> list[Self]:
        """Clients of new threads that begin as this one is now, or as it was at a checkpoint.

        into: how many, or the thread_ids that they get. End their sandboxes with cleanup(), or
            leave that to the idle timeout.
        """
        sandboxes, thread_id = await self._connection.thread()
        if isinstance(into, int):
            base = f"{thread_id[:100]}.fork-"
            into = [f"{base}{uuid.uuid4().hex[:12]}" for _ in range(into)]
        begins = (
            {"thread_id": thread_id}
            if checkpoint is None
            else {"checkpoint_id": _id_of(checkpoint)}
        )
        result = await sandboxes.fork(checked(ForkRequest, **begins, into=list(into)))
        return [self._of_thread(session.thread_id) for session in result.sessions]

    async def history(self, *, limit: int = 20) -> list[HistoryEntry]:
        """What was done in a sandbox that was made with `history`, newest first: each command with
        its exit code, and the files it made, changed and removed in /workspace."""
        sandboxes, thread_id = await self._connection.thread()
        return (await sandboxes.history(thread_id, limit=limit)).entries

    async def changes(self, number: int) -> CommandChanges:
        """What one entry of the history did to the files in /workspace; `diff` is a patch."""
        sandboxes, thread_id = await self._connection.thread()
        return await sandboxes.changes(thread_id, number)

    async def undo(self, to: int | None = None) -> Undone:
        """Go back to before a command, files and shell state together. What runs now ends. If it
        fails, nothing has changed; and an undo can be undone: it is an entry of the history too.

        to: the number of an entry of the history, also of one that was undone; by default the last
            one that was not.
        """
        sandboxes, thread_id = await self._connection.thread()
        session = await sandboxes.undo(checked(UndoRequest, thread_id=thread_id, to=to))
        self._connection.has_moved(session)
        return session

    def _of_thread(self, thread_id: str) -> Self:
        return type(self)(thread_id, backend=self._connection.backend)  # type: ignore[call-arg]


def _id_of(checkpoint: str | Checkpoint) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.checkpoint_id
