"""Connections to what listens in a sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.models import ConnectRequest
from sandbox_server.service.access import SessionAccess
from sandbox_server.sessions.live import LiveSession


class ConnectionHandlers:
    def __init__(self, access: SessionAccess) -> None:
        self._access = access

    @contextlib.asynccontextmanager
    async def connect(self, tenant: str, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        session = await self._access.table.find(tenant, request)
        async with (
            self._access.reporting_loss(session),
            session.agent.dial(port=request.port, path=request.path) as channel,
        ):
            yield _InUse(channel, session)


class _InUse(ByteChannel):
    """Keeps the session from expiring while bytes go through, but not by being open: a page that
    somebody forgot in a tab would keep its sandbox for ever."""

    def __init__(self, channel: ByteChannel, session: LiveSession) -> None:
        self._channel = channel
        self._session = session
        self._touch()

    def _touch(self) -> None:
        with self._session.use():
            pass

    async def read(self) -> bytes:
        data = await self._channel.read()
        self._session.bytes_out += len(data)
        self._touch()
        return data

    async def write(self, data: bytes) -> None:
        self._touch()
        self._session.bytes_in += len(data)
        await self._channel.write(data)

    async def end(self) -> None:
        await self._channel.end()
