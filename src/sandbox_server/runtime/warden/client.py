"""The server's side of a warden: everything that can be done in a box."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from sandbox_server.runtime.agent import BoxAgent, BoxState, Said, Usage
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.streams import ByteStream
from sandbox_warden import frames

from .commands import CommandCalls
from .files import FileCalls


class WardenClient(CommandCalls, FileCalls, BoxAgent):
    """Speaks to the warden of one box in the name of one epoch.

    It keeps one link and replaces it when it breaks.
    """

    async def usage(self) -> Usage:
        return await self._ask(Usage, frames.USAGE, {})

    async def state(self) -> BoxState:
        return await self._ask(BoxState, frames.STATE, {})

    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        return await self._ask(BoxState, frames.STATE, {"set": dict(state)})

    async def ping(self) -> None:
        await self._ask(Said, frames.PING, {})


class WardenBox(Box):
    """A box with a warden in it, reached by a stream of bytes."""

    @abstractmethod
    async def open_stream(self) -> ByteStream:
        """A new stream to the warden. Several may be open at once.

        Raises SessionLost where the box is gone, RuntimeUnavailable where that cannot be told.
        """

    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> WardenClient:
        return WardenClient(self, epoch=epoch, deadman_s=deadman_s)
