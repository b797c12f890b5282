"""Connections to and from sockets of a box."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.agent import AgentAnswer
from sandbox_warden import frames

from .answers import checked, raise_error
from .link import Channel, LinkLost
from .reconnecting_link import ReconnectingLink

_DIAL_S = 15.0
"""Longer than a warden tries."""
_TOGETHER = 4 * frames.CHUNK


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


class TunnelCalls(ReconnectingLink):
    """The methods of BoxAgent about connections."""

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


def _broken(error: LinkLost) -> RuntimeUnavailable:
    return RuntimeUnavailable(f"the connection to the box broke: {error}")
