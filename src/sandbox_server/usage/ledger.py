"""The usage ledger of one server, in SQLite. Its processes share the file.

The counters of a box only grow. What was last seen of them is stored per session, and what they
have grown by is added to the day in the same transaction: whenever the server is killed, nothing is
counted twice, and the next reading has what is missing.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from sandbox_server.storage.database import Database, Statement
from sandbox_server.usage.figures import (
    NAMES,
    OF_KEYS,
    OF_SESSION,
    Figures,
    Row,
    day_of,
    key_in,
    spans,
)

_FIGURES = ", ".join(
    f"{name} {'real' if name == 'memory_byte_s' else 'integer'} not null default 0"
    for name in NAMES
)
SCHEMA = f"""
create table if not exists seen (
    session_id text primary key, at real not null, commands integer not null,
    cpu_us integer not null, command_ms integer not null, bytes_in integer not null,
    bytes_out integer not null
);
create table if not exists days (
    tenant text not null, day text not null, {_FIGURES},
    version integer not null default 1, told integer not null default 0,
    primary key (tenant, day)
);
create index if not exists days_day on days (day);
create index if not exists days_untold on days (tenant) where version != told;
create table if not exists session_days (
    tenant text not null, day text not null, thread_id text not null, session_id text not null,
    {_FIGURES}, version integer not null default 1, told integer not null default 0,
    primary key (tenant, day, session_id)
);
create index if not exists session_days_untold on session_days (tenant) where version != told;
create table if not exists warned (
    tenant text not null, day text not null, budget text not null,
    primary key (tenant, day, budget)
);
create table if not exists ledger (one integer primary key check (one = 1), id text not null);
"""
SESSIONS_A_DAY = 10_000
"""Of one tenant, that have a row of their own; further ones share one without names."""
_SEEN = ("commands", "cpu_us", "command_ms", "bytes_in", "bytes_out")
_COLUMNS = ", ".join(NAMES)


@dataclass(frozen=True, kw_only=True)
class Retention:
    days: int = 400
    """That a tenant's days are kept."""
    detail_days: int = 35
    """The same for those of threads and sessions."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The counters of a session's box at a moment; None: not known, as they were."""

    tenant: str
    thread_id: str
    session_id: str
    began: float
    at: float
    cpu_us: int | None = None
    commands: int | None = None
    command_ms: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    memory: int = 0
    memory_peak: int = 0
    paused: bool = False
    """Whether it was since the last reading."""
    account: str = ""
    """Of the key that made the session, where what that uses is counted: see key_account."""
    moved_in: int = 0
    """Bytes that went through this process since the last reading."""
    moved_out: int = 0
    egress: int = 0
    elsewhere: bool = False
    """Whether the counters are in another ledger up to now: only what they grow by is added."""


class UsageLedger:
    """Blocks. Every method may raise RuntimeUnavailable. Close it."""

    def __init__(self, path: Path | None = None, retention: Retention | None = None) -> None:
        self._db = Database(path, SCHEMA)
        for table in ("days", "session_days"):
            self._db.add_column(table, "paused_ms integer not null default 0")
        self.retention = retention or Retention()
        self._db.execute("insert or ignore into ledger values (1, ?)", uuid.uuid4().hex[:12])
        ((self.id,),) = self._db.execute("select id from ledger")

    def close(self) -> None:
        self._db.close()

    def add(self, readings: Iterable[Reading]) -> None:
        """All of them, or none."""
        with self._db.transaction() as execute:
            for reading in readings:
                self._add(execute, reading)

    def _add(self, execute: Statement, reading: Reading) -> None:
        found = execute(
            f"select at, {', '.join(_SEEN)} from seen where session_id = ?", reading.session_id
        )
        before = dict(zip(("at", *_SEEN), found[0], strict=True)) if found else {}
        if reading.elsewhere:
            if reading.commands is None:  # The box did not answer: with the next reading.
                return
            before = {"at": reading.at, **{name: getattr(reading, name) or 0 for name in _SEEN}}
        since = min(before.get("at", reading.began), reading.at)
        now = {name: max(before.get(name, 0), getattr(reading, name) or 0) for name in _SEEN}
        grown = {name: now[name] - before.get(name, 0) for name in _SEEN}
        grown["bytes_in"] += reading.moved_in
        grown["bytes_out"] += reading.moved_out
        # Counters do not say when they grew: what is between two readings counts for the day in
        # which most of the time between them lies. Time itself is divided at midnight.
        day = day_of((since + reading.at) / 2)
        counted = Figures(**grown, memory_peak=reading.memory_peak, egress_bytes=reading.egress)
        added = {day: counted}
        for each, seconds in spans(since, reading.at):
            passed_ms = {"paused_ms" if reading.paused else "session_ms": round(seconds * 1000)}
            lived = Figures(**passed_ms, memory_byte_s=reading.memory * seconds)
            added[each] = added.get(each, Figures()) + lived
        for each, figures in added.items():
            self._add_day(execute, reading, each, figures)
        execute(
            f"insert into seen (session_id, at, {', '.join(_SEEN)}) values (?, ?, ?, ?, ?, ?, ?)"
            f" on conflict do update set at = max(at, excluded.at),"
            f" {', '.join(f'{name} = excluded.{name}' for name in _SEEN)}",
            reading.session_id, reading.at, *now.values(),
        )  # fmt: skip

    def _add_day(self, execute: Statement, reading: Reading, day: date, figures: Figures) -> None:
        for account in filter(None, (reading.tenant, reading.account)):
            _upsert(execute, "days", {"tenant": account, "day": str(day)}, figures)
        names = {"thread_id": reading.thread_id, "session_id": reading.session_id}
        where = "where tenant = ? and day = ?"
        if not execute(
            f"select 1 from session_days {where} and session_id = ?",
            reading.tenant, str(day), reading.session_id,
        ):  # fmt: skip
            ((rows,),) = execute(
                f"select count(*) from session_days {where}", reading.tenant, str(day)
            )
            if rows >= SESSIONS_A_DAY:
                names = dict.fromkeys(names, "")
        key = {"tenant": reading.tenant, "day": str(day), **names}
        _upsert(execute, "session_days", key, figures)

    def store(self, tenant: str, day: date, *, stored: int, together: int) -> None:
        """Note how much is stored for a tenant now."""
        figures = Figures(stored=stored, stored_together=together)
        with self._db.transaction() as execute:
            _upsert(execute, "days", {"tenant": tenant, "day": str(day)}, figures)

    def totals(self, day: date) -> dict[str, Figures]:
        """Of all tenants, and of keys whose use is counted."""
        rows = self._db.execute(f"select tenant, {_COLUMNS} from days where day = ?", str(day))
        return {row[0]: _figures(row[1:]) for row in rows}

    def tenants(self, since: date) -> list[str]:
        rows = self._db.execute("select distinct tenant from days where day >= ?", str(since))
        return [tenant for (tenant,) in rows if not key_in(tenant)]

    def of_session(self, session_id: str, tenant: str, day: date) -> Figures:
        rows = self._db.execute(
            f"select {_COLUMNS} from session_days where tenant = ? and day = ? and session_id = ?",
            tenant, str(day), session_id,
        )  # fmt: skip
        return _figures(rows[0]) if rows else Figures()

    def rows(self, tenant: str, since: date, until: date, *, detail: bool) -> list[Row]:
        """detail: those of sessions, instead of the tenant's."""
        names = "thread_id, session_id" if detail else "null, null"
        found = self._db.execute(
            f"select day, {names}, {_COLUMNS} from {'session_days' if detail else 'days'}"
            " where tenant = ? and day between ? and ? order by day",
            tenant, str(since), str(until),
        )  # fmt: skip
        return [_row(*row) for row in found]

    def untold(self, limit: int) -> list[tuple[str, Row, int]]:
        """Rows that have changed since they were told of: tenant, row and version."""
        found = []
        for table, names in (("days", "null, null"), ("session_days", "thread_id, session_id")):
            for tenant, day, thread_id, session_id, version, *figures in self._db.execute(
                f"select tenant, day, {names}, version, {_COLUMNS} from {table}"
                f" where version != told limit {limit}"
            ):
                found.append((tenant, _row(day, thread_id, session_id, *figures), version))
        return found

    def told(self, rows: Iterable[tuple[str, Row, int]]) -> None:
        with self._db.transaction() as execute:
            for tenant, row, version in rows:
                table, which = "days", "tenant = ? and day = ?"
                values: list[object] = [version, tenant, str(row.day)]
                if row.session_id is not None:
                    table, which = "session_days", f"{which} and session_id = ?"
                    values.append(row.session_id)
                execute(f"update {table} set told = ? where {which}", *values)

    def warn_once(self, tenant: str, day: date, budget: str) -> bool:
        """Whether nobody was warned of this yet."""
        sql = "insert or ignore into warned values (?, ?, ?) returning 1"
        return bool(self._db.execute(sql, tenant, str(day), budget))

    def tidy(self, today: date) -> None:
        """Forget what is past its retention."""
        detail = str(today - timedelta(days=self.retention.detail_days))
        with self._db.transaction() as execute:
            for table in ("session_days", "warned"):
                execute(f"delete from {table} where day < ?", detail)
            execute("delete from days where day < ? and tenant like ?", detail, f"{OF_KEYS}%")
            execute(
                "delete from days where day < ?", str(today - timedelta(days=self.retention.days))
            )
            old = (today - timedelta(days=self.retention.detail_days)).toordinal()
            execute("delete from seen where at < ?", (old - _EPOCH) * 86400.0)


_EPOCH = date(1970, 1, 1).toordinal()


def _upsert(execute: Statement, table: str, key: dict[str, str], figures: Figures) -> None:
    names = [name for name in NAMES if getattr(figures, name)]
    grows = [name for name in names if name in OF_SESSION and name != "memory_peak"]
    sets = [f"{name} = {name} + excluded.{name}" for name in grows]
    sets += [f"{name} = max({name}, excluded.{name})" for name in names if name not in grows]
    columns = [*key, *names]
    execute(
        f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"
        f" on conflict do update set {', '.join([*sets, 'version = version + 1'])}",
        *key.values(),
        *(getattr(figures, name) for name in names),
    )


def _row(day: str, thread_id: str | None, session_id: str | None, *figures: float) -> Row:
    return Row(
        day=date.fromisoformat(day),
        thread_id=thread_id,
        session_id=session_id,
        figures=_figures(figures),
    )


def _figures(values: Sequence[float]) -> Figures:
    return Figures.of(dict(zip(NAMES, values, strict=True)))


class SharedUsage(ABC):
    """Where the ledgers of a fleet come together. Every method may raise RuntimeUnavailable."""

    @abstractmethod
    async def publish(self, ledger_id: str, rows: Sequence[tuple[str, Row]]) -> None:
        """Rows as they are now; the same again changes nothing."""

    @abstractmethod
    async def others(
        self, ledger_id: str, accounts: Sequence[str], day: date
    ) -> dict[str, Figures]:
        """What all other ledgers have of tenants and keys."""
