"""A box with a warden in it, reached by a stream of bytes."""

from __future__ import annotations

from abc import abstractmethod

from sandbox_server.runtime.base import Box
from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden.client import WardenClient


class WardenBox(Box):
    @abstractmethod
    async def open_stream(self) -> ByteStream:
        """A new stream to the warden. Several may be open at once.

        Raises SessionLost where the box is gone, RuntimeUnavailable where that cannot be told.
        """

    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> WardenClient:
        return WardenClient(self, epoch=epoch, deadman_s=deadman_s)
