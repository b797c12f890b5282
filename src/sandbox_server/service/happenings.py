"""What happens, as one tenant is told."""

from __future__ import annotations

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.models import HappeningList, HappeningsRequest
from sandbox_sdk.protocol.operations import Handlers
from sandbox_server.sessions.table import SessionTable


class HappeningHandlers:
    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self.handlers: Handlers = {op.EVENTS: self._since}

    async def _since(self, tenant: str, request: HappeningsRequest) -> HappeningList:
        return await self._table.notes.events.since(tenant, request)
