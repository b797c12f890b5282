"""The handler of usage, and who may not use more."""

from __future__ import annotations

from typing import Any

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import UsageReport, UsageRequest
from sandbox_sdk.protocol.operations import Handlers, Operation
from sandbox_server.sessions.table import SessionTable
from sandbox_server.usage.prices import Prices
from sandbox_server.usage.report import LedgerRows, report

SPENDING: frozenset[Operation[Any, Any]] = frozenset(
    {
        op.CREATE_SESSION, op.EXECUTE, op.RUN_CODE, op.CALL_TOOL, op.CREATE_CONTEXT,
        op.RESTORE, op.FORK, op.UNDO, op.CREATE_VOLUME, op.CHECKPOINT,
    }
)  # fmt: skip
"""Operations that a tenant cannot call whose budget is used up. Others read, or clean up."""


class UsageHandlers:
    def __init__(self, table: SessionTable, prices: Prices) -> None:
        self._table = table
        self._prices = prices
        self.handlers: Handlers = {op.USAGE: self._usage}

    async def _usage(self, tenant: str, request: UsageRequest) -> UsageReport:
        """With what has happened up to now."""
        usage = self._table.usage
        if usage is None:
            raise InvalidRequest("this server does not count what is used")
        sessions = self._table.sessions()
        await usage.read([each for each in sessions if each.record.tenant == tenant])
        await usage.publish()
        return await report(
            LedgerRows(usage.ledger), tenant, request, self._prices, today=usage.today_is
        )

    def check(self, tenant: str) -> None:
        """Raises RateLimited if a budget of the tenant is used up."""
        if self._table.usage is not None:
            self._table.usage.check(tenant)
