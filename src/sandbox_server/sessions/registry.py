"""The registry: an index of sessions that outlives the server.

The truth about a live session is in its box. The registry remembers what a box that is gone can no
longer tell: that there was one, so that a loss is told and never papered over.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

_SCHEMA = """
create table if not exists sessions (
    tenant text not null, thread_id text not null, generation integer not null,
    session_id text not null unique, box_id text not null, status text not null,
    created_at real not null, changed_at real not null,
    primary key (tenant, thread_id, generation)
);
create index if not exists changed on sessions (changed_at) where status != 'live';
create table if not exists epochs (one integer primary key check (one = 1), epoch integer);
"""


class Status(StrEnum):
    LIVE = "live"
    CLEANED = "cleaned"
    """Ended because its caller said so."""
    EXPIRED = "expired"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Record:
    tenant: str
    thread_id: str
    generation: int
    session_id: str
    box_id: str
    status: Status
    created_at: float


class SqliteRegistry:
    """A registry in one file, or in memory where there is no path."""

    def __init__(self, path: Path | None = None) -> None:
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=normal")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    def next_epoch(self) -> int:
        """Higher than any handed out before: whoever comes later fences those before."""
        row = self._db.execute(
            "insert into epochs values (1, 1) on conflict do update set epoch = epoch + 1"
            " returning epoch"
        ).fetchone()
        return int(row[0])

    def newest(self, tenant: str, thread_id: str) -> Record | None:
        """The latest life of a thread, live or not."""
        return self._one(
            "where tenant = ? and thread_id = ? order by generation desc", tenant, thread_id
        )

    def by_session(self, tenant: str, session_id: str) -> Record | None:
        return self._one("where tenant = ? and session_id = ?", tenant, session_id)

    def live(self) -> list[Record]:
        rows = self._db.execute(f"select {_COLUMNS} from sessions where status = 'live'")
        return [_record(row) for row in rows]

    def save(self, record: Record, *, now: float) -> None:
        self._db.execute(
            f"insert or replace into sessions ({_COLUMNS}, changed_at)"
            " values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.tenant,
                record.thread_id,
                record.generation,
                record.session_id,
                record.box_id,
                record.status.value,
                record.created_at,
                now,
            ),
        )

    def end(self, record: Record, status: Status, *, now: float) -> None:
        self.save(replace(record, status=status), now=now)

    def forget_before(self, when: float) -> None:
        """Drop what ended before: a thread of that long ago may begin anew."""
        self._db.execute("delete from sessions where status != 'live' and changed_at < ?", (when,))

    def _one(self, where: str, *values: str) -> Record | None:
        query = f"select {_COLUMNS} from sessions {where} limit 1"
        row = self._db.execute(query, values).fetchone()
        return None if row is None else _record(row)


_COLUMNS = "tenant, thread_id, generation, session_id, box_id, status, created_at"


def _record(row: tuple[str, str, int, str, str, str, float]) -> Record:
    tenant, thread_id, generation, session_id, box_id, status, created_at = row
    return Record(
        tenant=tenant,
        thread_id=thread_id,
        generation=generation,
        session_id=session_id,
        box_id=box_id,
        status=Status(status),
        created_at=created_at,
    )
