"""The methods of clients about events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.models import Happening, HappeningKind

METHODS = ("watch",)


class WatchMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def watch(
        self,
        *,
        thread_id: str | None = None,
        kind: HappeningKind | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[Happening]:
        """What happens to all sandboxes of this server and key, as it happens and without an end:
        sessions that begin and end, commands that end, checkpoints, limits.

        thread_id, kind: of this thread or kind alone. after: the `id` of the last event that was
        seen; by default, from now on. Events that are missing are told by one of kind `gap`.
        """
        sandboxes = await self._connection.opened()
        async for event in sandboxes.watch(thread_id=thread_id, kind=kind, after=after):
            yield event
