"""Connections to what listens in a sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import Conflict
from sandbox_sdk.protocol.models import ConnectRequest
from sandbox_server.service.access import SessionAccess
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.table import SessionTable


class ConnectionHandlers:
    def __init__(self, access: SessionAccess) -> None:
        self._access = access

    @contextlib.asynccontextmanager
    async def connect(self, tenant: str, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        """Raises Conflict for a paused session that is not to be woken."""
        table = self._access.table
        session = await table.find(tenant, request)
        if not request.unpause:
            _require_awake(session)
        async with (
            self._access.reporting_loss(session, unpause=request.unpause),
            session.agent.dial(port=request.port, path=request.path) as channel,
        ):
            yield _InUse(channel, session, table if request.unpause else None)


class _InUse(ByteChannel):
    """Keeps the session from expiring while bytes go through, but not by being open: a page that
    somebody forgot in a tab would keep its sandbox for ever."""

    def __init__(
        self, channel: ByteChannel, session: LiveSession, wakes: SessionTable | None
    ) -> None:
        """wakes: the table of a session that is woken by what is sent to it; None: it is not."""
        self._channel = channel
        self._session = session
        self._wakes = wakes
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
        if self._session.paused_at is not None:
            if self._wakes is None:
                _require_awake(self._session)
            else:
                await self._wakes.unpause(self._session)
        self._touch()
        self._session.bytes_in += len(data)
        await self._channel.write(data)

    async def end(self) -> None:
        await self._channel.end()


def _require_awake(session: LiveSession) -> None:
    if session.paused_at is not None:
        raise Conflict("the sandbox is paused; let it go on with unpause")
