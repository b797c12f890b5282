"""The methods of clients about volumes."""

from __future__ import annotations

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.models import Volume

METHODS = ("volumes", "create_volume", "delete_volume")


class VolumeMethods:
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
