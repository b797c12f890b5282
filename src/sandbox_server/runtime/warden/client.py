"""WardenClient: the BoxAgent of boxes with a warden, and connections to sockets of a box."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_server.runtime.agent import Ability, AgentAnswer, BoxState, Usage
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.streams import ByteStream
from sandbox_warden import frames

from .answers import checked, raise_error
from .commands import CommandCalls
from .files import FileCalls
from .link import Channel, LinkLost

_DIAL_S = 15.0
"""Longer than a warden tries."""
_TOGETHER = 4 * frames.CHUNK


class WardenClient(CommandCalls, FileCalls):
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

    @contextlib.asynccontextmanager
    async def dial(
        self, *, port: int | None = None, path: str | None = None
    ) -> AsyncIterator[ByteChannel]:
        where = {"port": port} if path is None else {"path": path}
        async with self._tunnel(frames.DIAL, where, within_s=_DIAL_S) as tunnel:
            yield tunnel

    @contextlib.asynccontextmanager
    async def accept(self, port: int) -> AsyncIterator[ByteChannel]:
        async with self._tunnel(frames.ACCEPT, {"port": port}, within_s=None) as tunnel:
            yield tunnel

    @contextlib.asynccontextmanager
    async def _tunnel(
        self, kind: int, body: dict[str, Any], *, within_s: float | None
    ) -> AsyncIterator[ByteChannel]:
        link = await self.get_link()
        try:
            async with link.request(kind, body) as channel:
                async with asyncio.timeout(within_s):
                    frame = await channel.receive()
                checked(AgentAnswer, frame, kind=frames.STARTED)
                yield _Tunnel(channel)
        except (LinkLost, TimeoutError) as exc:
            raise self._unanswered(exc) from exc


class _Tunnel(ByteChannel):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._received_all = self._over = False

    async def read(self) -> bytes:
        while not self._received_all:
            frame = await self._receive()
            kind, _, payload = frame
            if kind == frames.DATA and payload:
                return await self._with_more(payload)
            if kind == frames.EOF:
                self._received_all = True
            elif kind == frames.REPLY:
                self._received_all = self._over = True
            elif kind != frames.DATA:
                raise_error(frame, expected=frames.DATA)
        return b""

    async def _with_more(self, payload: bytes) -> bytes:
        """Together with what came meanwhile: whoever passes it on does so less often."""
        try:
            more = await self._channel.receive_more(_TOGETHER)
        except LinkLost:  # The next read tells.
            return payload
        return b"".join((payload, *more)) if more else payload

    async def write(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), frames.CHUNK):
                await self._channel.send_within_window(data[start : start + frames.CHUNK])
        except LinkLost as exc:
            raise _broken(exc) from exc

    async def end(self) -> None:
        with contextlib.suppress(LinkLost):  # Then reading tells.
            await self._channel.send(frames.EOF)

    async def _receive(self) -> frames.Frame:
        try:
            return await self._channel.receive()
        except LinkLost as exc:
            raise _broken(exc) from exc


def _broken(error: LinkLost) -> errors.RuntimeUnavailable:
    return errors.RuntimeUnavailable(f"the connection to the box broke: {error}")


class WardenBox(Box):
    """A box with a warden, reached over a byte stream."""

    @abstractmethod
    async def open_stream(self) -> ByteStream:
        """Open a stream to the warden; several may be open at once.

        Raises SessionLost if the box is gone, RuntimeUnavailable if it cannot be reached.
        """

    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> WardenClient:
        return WardenClient(self, epoch=epoch, deadman_s=deadman_s)
