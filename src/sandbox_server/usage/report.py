"""Answers about usage, from the rows of one ledger or of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import date, timedelta

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import UsageReport, UsageRequest, UsageRow
from sandbox_server.usage.figures import Figures, Row
from sandbox_server.usage.ledger import UsageLedger
from sandbox_server.usage.prices import GB, Prices

MOST_ROWS = 1000
USUAL_DAYS = 30
MOST_DAYS = 1100
_HOUR_S = 3600.0
Key = tuple[date | None, str | None, str | None]
_KEYS: dict[str, Callable[[Row], Key]] = {
    "day": lambda row: (row.day, None, None),
    "thread": lambda row: (None, row.thread_id, None),
    "session": lambda row: (None, row.thread_id, row.session_id),
    "total": lambda _row: (None, None, None),
}


class UsageRows(ABC):
    """What is known of usage: by one ledger, or by a fleet."""

    @abstractmethod
    async def rows(self, tenant: str, since: date, until: date, *, detail: bool) -> list[Row]:
        """Of several ledgers there may be several for the same day. Raises RuntimeUnavailable."""


class LedgerRows(UsageRows):
    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger = ledger

    async def rows(self, tenant: str, since: date, until: date, *, detail: bool) -> list[Row]:
        return self._ledger.rows(tenant, since, until, detail=detail)


async def report(
    source: UsageRows, tenant: str, request: UsageRequest, prices: Prices, *, today: date
) -> UsageReport:
    """Raises InvalidRequest for days that are in no order."""
    until = request.until or today
    since = request.since or until - timedelta(days=USUAL_DAYS - 1)
    if not 0 <= (until - since).days < MOST_DAYS:
        raise InvalidRequest(
            f"since {since} until {until}: name days in their order, at most {MOST_DAYS}"
        )
    detail = request.by in ("thread", "session") or request.thread_id is not None
    rows = await source.rows(tenant, since, until, detail=detail)
    if request.thread_id is not None:
        rows = [row for row in rows if row.thread_id == request.thread_id]
    answer = _rows(rows, request, prices, stored=not detail)
    return UsageReport(
        by=request.by,
        since=since,
        until=until,
        rows=answer[:MOST_ROWS],
        truncated=len(answer) > MOST_ROWS,
        currency=prices.currency,
    )


def _rows(
    rows: Sequence[Row], request: UsageRequest, prices: Prices, *, stored: bool
) -> list[UsageRow]:
    key_of = _KEYS[request.by]
    by_key: dict[Key, dict[date, Figures]] = {}
    for row in rows:
        days = by_key.setdefault(key_of(row), {})
        days[row.day] = days.get(row.day, Figures()) + row.figures
    if request.by == "day":
        return [_row(key, by_key[key], prices, stored) for key in sorted(by_key, key=str)]
    most = sorted(by_key, key=lambda key: -sum(each.cpu_us for each in by_key[key].values()))
    return [_row(key, by_key[key], prices, stored) for key in most]


def _row(key: Key, days: dict[date, Figures], prices: Prices, stored: bool) -> UsageRow:
    used = sum(days.values(), start=Figures())
    storage = [each.storage for each in days.values()]
    costs = [prices.cost(each) for each in days.values()]
    day, thread_id, session_id = key
    return UsageRow(
        day=day,
        thread_id=thread_id,
        session_id=session_id,
        commands=used.commands,
        cpu_seconds=used.cpu_us / 1e6,
        command_seconds=used.command_ms / 1000,
        session_seconds=used.session_ms / 1000,
        paused_seconds=used.paused_ms / 1000,
        memory_peak_bytes=used.memory_peak,
        memory_gb_hours=round(used.memory_byte_s / GB / _HOUR_S, 9),
        bytes_in=used.bytes_in,
        bytes_out=used.bytes_out,
        egress_bytes=used.egress_bytes,
        storage_bytes=max(storage, default=0) if stored else None,
        storage_gb_days=round(sum(storage) / GB, 9) if stored else None,
        cost=None if None in costs else round(sum(filter(None, costs)), 6),
    )
