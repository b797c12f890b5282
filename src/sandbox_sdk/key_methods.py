"""The methods of clients about what belongs to a key, or to this machine's user, and to no one
sandbox: volumes, usage, and what happens to all sandboxes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import date

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.models import Happening, HappeningKind, UsageBy, UsageReport, Volume


class KeyMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def volumes(self) -> list[Volume]:
        """The volumes of this server and key, or of this machine's user, by name. `mounted_by`
        tells which threads have one now."""
        return (await (await self._connection.opened()).volumes()).volumes

    async def create_volume(self, name: str, *, size: int | str | None = None) -> Volume:
        """Make an empty volume. create_session(volumes=…) makes those that are not there, too.

        size: in bytes or as "4g"; by default the server's SANDBOX_VOLUME_SIZE, 1 GiB unless
            configured. Raises DiskFull if all volumes together would be more than the server
            allows, Conflict if there is one of this name.
        """
        return await (await self._connection.opened()).create_volume(name, size=size)

    async def delete_volume(self, name: str) -> None:
        """Delete a volume with its files. Raises Conflict while a sandbox has it."""
        await (await self._connection.opened()).delete_volume(name)

    async def usage(
        self,
        *,
        by: UsageBy = "day",
        since: date | None = None,
        until: date | None = None,
        thread_id: str | None = None,
    ) -> UsageReport:
        """What all sandboxes of this server and key, or of this machine's user, have used.

        by: "day", "thread", "session" or "total". since, until: days of UTC, both included; by
            default the last 30 days. thread_id: of this thread alone. `cost` is there where the
            server has prices.
        """
        sandboxes = await self._connection.opened()
        return await sandboxes.usage(by=by, since=since, until=until, thread_id=thread_id)

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
