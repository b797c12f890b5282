"""The handler of usage, who may not use more, and how much is stored for a tenant."""

from __future__ import annotations

import contextlib
from typing import Any

from sandbox_sdk.protocol import calling_key
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError
from sandbox_sdk.protocol.models import Request, UsageReport, UsageRequest
from sandbox_sdk.protocol.operations import Handlers, Operation
from sandbox_server.checkpoints.checkpoints import Checkpoints
from sandbox_server.sessions.counting import Stored
from sandbox_server.sessions.table import SessionTable
from sandbox_server.storage.storage import Storage
from sandbox_server.usage.figures import key_account
from sandbox_server.usage.prices import Prices
from sandbox_server.usage.report import LedgerRows, report
from sandbox_server.volumes.volumes import Volumes

SPENDING: frozenset[Operation[Any, Any]] = frozenset(
    {
        op.CREATE_SESSION, op.EXECUTE, op.RUN_CODE, op.CALL_TOOL, op.CREATE_CONTEXT,
        op.RESTORE, op.FORK, op.UNDO, op.CREATE_VOLUME, op.CHECKPOINT,
    }
)  # fmt: skip
"""Operations that a tenant or key cannot call whose budget is used up. Others read, or clean up."""


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

    async def admit(self, tenant: str, request: Request) -> None:
        """Raises RateLimited if a budget is used up: of the tenant, of the key that calls, or of
        the one that made the session, which is charged for it."""
        usage = self._table.usage
        if usage is None:
            return
        await usage.admit(tenant)
        if usage.budgets.has_keys:
            keys = {calling_key.current(), self._maker_of(tenant, request)}
            await usage.admit(*(key_account(tenant, key_id) for key_id in keys))

    def _maker_of(self, tenant: str, request: Request) -> str:
        """The key that made the session of a request; empty if there is none."""
        thread_id, session_id = (vars(request).get(name) for name in ("thread_id", "session_id"))
        if thread_id is not None:
            live = self._table.live(tenant, thread_id)
            return "" if live is None else live.made_by
        for session in self._table.sessions():
            if (session.record.tenant, session.record.session_id) == (tenant, session_id):
                return session.made_by
        return ""


def storing(
    storage: Storage, checkpoints: Checkpoints | None, volumes: Volumes, *, together: bool
) -> Stored:
    """The bytes of artifacts, volumes and checkpoints of a tenant. together: whether other servers
    have the same checkpoints. What cannot be looked at counts as nothing: the most of the day
    counts, and it is looked at again."""

    async def stored(tenant: str) -> tuple[int, int]:
        alone = kept = 0
        with contextlib.suppress(SandboxError):
            alone += storage.artifacts.stored(tenant)
        with contextlib.suppress(SandboxError):
            alone += sum(volume.used for volume in await volumes.of(tenant))
        if checkpoints is not None:
            with contextlib.suppress(SandboxError):
                kept = await checkpoints.stored(tenant)
        return (alone, kept) if together else (alone + kept, 0)

    return stored
