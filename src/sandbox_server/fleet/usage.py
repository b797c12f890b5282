"""The usage of a fleet, in its Redis: workers write to it, coordinators answer from it.

Every ledger writes its own totals under its own name, as they are: written twice, they are the
same. What a worker has written stays when the worker is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date

from sandbox_server.fleet.store import Store
from sandbox_server.usage.figures import Figures, Row, days_between, key_in
from sandbox_server.usage.ledger import Retention, SharedUsage
from sandbox_server.usage.report import UsageRows

_PIECE = 50
"""Days that are asked for at a time."""
_DAY_MS = 86_400_000


class RedisUsage(SharedUsage, UsageRows):
    """By tenant and day: a hash of the totals by ledger, and one of the sessions by ledger and
    session."""

    def __init__(self, store: Store, retention: Retention) -> None:
        self._store = store
        self._retention = retention

    async def publish(self, ledger_id: str, rows: Sequence[tuple[str, Row]]) -> None:
        commands: list[tuple[object, ...]] = []
        for tenant, row in rows:
            detail = row.session_id is not None
            key = self._key(tenant, row.day, detail=detail)
            field = f"{ledger_id}/{row.session_id}" if detail else ledger_id
            text = json.dumps({"thread_id": row.thread_id, **asdict(row.figures)})
            briefly = detail or key_in(tenant)
            kept = self._retention.detail_days if briefly else self._retention.days
            commands += [("HSET", key, field, text), ("PEXPIRE", key, (kept + 1) * _DAY_MS)]
        await self._store.pipeline(commands)

    async def others(
        self, ledger_id: str, accounts: Sequence[str], day: date
    ) -> dict[str, Figures]:
        keys = [self._key(account, day, detail=False) for account in accounts]
        hashes = await self._store.pipeline([("HGETALL", key) for key in keys])
        return {
            account: sum(
                (_figures(text) for name, text in found.items() if name != ledger_id),
                start=Figures(),
            )
            for account, found in zip(accounts, hashes, strict=True)
        }

    async def rows(self, tenant: str, since: date, until: date, *, detail: bool) -> list[Row]:
        days = days_between(since, until)
        found: list[Row] = []
        for start in range(0, len(days), _PIECE):
            some = days[start : start + _PIECE]
            keys = [self._key(tenant, day, detail=detail) for day in some]
            hashes = await self._store.pipeline([("HGETALL", key) for key in keys])
            for day, fields in zip(some, hashes, strict=True):
                found += [_row(day, name, text) for name, text in fields.items()]
        return found

    def _key(self, tenant: str, day: date, *, detail: bool) -> str:
        return self._store.usage_key(tenant, f"{day}:sessions" if detail else str(day))


def _figures(text: str) -> Figures:
    return Figures.of(json.loads(text))


def _row(day: date, name: str, text: str) -> Row:
    _, has_session, session_id = name.partition("/")
    body = json.loads(text)
    return Row(
        day=day,
        figures=Figures.of(body),
        thread_id=body.get("thread_id"),
        session_id=session_id if has_session else None,
    )
