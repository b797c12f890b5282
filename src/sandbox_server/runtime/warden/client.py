"""WardenClient: the BoxAgent of boxes with a warden."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import Ability, AgentAnswer, BoxState, Usage
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.streams import ByteStream
from sandbox_warden import frames

from .commands import CommandCalls
from .files import FileCalls
from .tunnels import TunnelCalls


class WardenClient(CommandCalls, FileCalls, TunnelCalls):
    """Connection to the warden of one box under one epoch, over a link that reconnects."""

    def require(self, ability: Ability, purpose: str) -> None:
        super().require(ability, purpose)
        if (
            ability in ("pty", "tree", "tunnel", "files", "watch", "pause", "metadata")
            and self.about is not None
            and ability not in self.about.abilities
        ):
            raise errors.InvalidRequest(
                f"{purpose} needs a sandbox of this version, and this one was made by an earlier"
                " server; end the session to get a new one",
                ability=ability,
            )

    async def usage(self) -> Usage:
        return await self._ask(Usage, frames.USAGE, {})

    async def counts(self) -> Usage:
        return await self._ask(Usage, frames.USAGE, {"disk": False})

    async def state(self) -> BoxState:
        return await self._ask(BoxState, frames.STATE, {})

    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        return await self._ask(BoxState, frames.STATE, {"set": dict(state)})

    async def pause(self) -> None:
        await self._ask(AgentAnswer, frames.PAUSE, {"paused": True})

    async def unpause(self) -> None:
        await self._ask(AgentAnswer, frames.PAUSE, {"paused": False})

    async def ping(self) -> None:
        await self._ask(AgentAnswer, frames.PING, {})


class WardenBox(Box):
    """A box with a warden, reached over a byte stream."""

    @abstractmethod
    async def open_stream(self) -> ByteStream:
        """Open a stream to the warden; several may be open at once.

        Raises SessionLost if the box is gone, RuntimeUnavailable if it cannot be reached.
        """

    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> WardenClient:
        return WardenClient(self, epoch=epoch, deadman_s=deadman_s)
