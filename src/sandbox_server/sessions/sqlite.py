"""The registry of a standalone server, in one SQLite file that its processes share."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox_sdk.protocol.errors import Misdirected, SandboxError
from sandbox_sdk.protocol.models import Target
from sandbox_server.sessions import ledger, previews
from sandbox_server.sessions.ledger import Ledger
from sandbox_server.sessions.previews import PreviewTable, SessionPreviews
from sandbox_server.sessions.registry import (
    REMEMBER_KEPT_S,
    REMEMBER_S,
    Record,
    Registry,
    Status,
    error_for,
    is_same_or_older,
)
from sandbox_server.sessions.share import Share
from sandbox_server.storage.database import Database

_SCHEMA = """
create table if not exists sessions (
    tenant text not null, thread_id text not null, generation integer not null,
    session_id text not null unique, box_id text not null, status text not null,
    created_at real not null, changed_at real not null, worker text, asked text,
    primary key (tenant, thread_id, generation)
);
create index if not exists changed on sessions (changed_at) where status != 'live';
create table if not exists epochs (one integer primary key check (one = 1), epoch integer);
create table if not exists owners (owner text primary key);
"""
_FIELDS = ("tenant", "thread_id", "generation", "session_id", "box_id", "status", "created_at",
           "worker")  # fmt: skip
_COLUMNS = ", ".join(_FIELDS)


class SqliteRegistry(Registry):
    """Runs on the event loop, since calls take microseconds. In memory without a path."""

    def __init__(
        self, path: Path | None = None, *, worker: str = "", share: Share | None = None
    ) -> None:
        """share: of a process that is one of several, in place of `worker`."""
        self._share = share or Share(name=worker)
        schema = f"{_SCHEMA}\n{ledger.SCHEMA}\n{previews.SCHEMA}"
        self._db = Database(path, schema, unusable=ledger.unwritable)
        self._db.add_column("sessions", "worker text")
        self._db.add_column("sessions", "asked text")
        self.ledger = Ledger(self._db, self._share)
        self.previews = PreviewTable(self._db)
        self._forget()

    async def close(self) -> None:
        self._db.close()

    def next_epoch(self) -> int:
        """An epoch higher than any before, so that it fences earlier processes."""
        ((epoch,),) = self._db.execute(
            "insert into epochs values (1, 1) on conflict do update set epoch = epoch + 1"
            " returning epoch"
        )
        return int(epoch)

    def owners(self) -> list[str]:
        """The labels of all boxes that may be ours, from now on with our own."""
        self._db.execute("insert or ignore into owners values (?)", self._share.owner)
        labels = (owner for (owner,) in self._db.execute("select owner from owners"))
        return sorted({self._share.owner, *filter(self._share.has, labels)})

    def find(self, tenant: str, target: Target) -> Record | None:
        """The session of a target, or the latest one of its thread; live or not."""
        if target.session_id is not None:
            return self._one("where tenant = ? and session_id = ?", tenant, target.session_id)
        return self._newest(tenant, target.thread_id or "")

    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        return self._newest(tenant, thread_id)

    def _newest(self, tenant: str, thread_id: str) -> Record | None:
        where = "where tenant = ? and thread_id = ? order by generation desc"
        return self._one(where, tenant, thread_id)

    async def by_session(self, tenant: str, session_id: str) -> Record | None:
        return self._one("where tenant = ? and session_id = ?", tenant, session_id)

    async def live(self) -> list[Record]:
        return [r for r in self._all("where status = 'live'") if self._share.has(r.worker)]

    async def predecessor(self, tenant: str, thread_id: str) -> Record | None:
        record = self._newest(tenant, thread_id)
        if record is not None and record.status == Status.LIVE:
            process = self._share.process_of(record.worker)
        else:
            process = self._share.begins_at(tenant, thread_id)
        if process != self._share.index:
            raise self._misdirected(thread_id, process)
        return record

    async def begin(self, record: Record, *, before: Record | None) -> None:
        if before is not None and before.status == Status.LIVE:
            self._save(replace(before, status=Status.LOST))
        self._save(record)

    async def restore_all(self, records: Sequence[Record]) -> list[bool]:
        return [self._restore(record) for record in records]

    def _restore(self, record: Record) -> bool:
        newest = self._newest(record.tenant, record.thread_id)
        if newest is not None and not is_same_or_older(newest, record):
            return False
        self._save(record)
        return True

    async def end(self, record: Record, status: Status) -> None:
        self.previews.end(record.session_id)
        known = await self.by_session(record.tenant, record.session_id)
        if known is None or known.status in (Status.LIVE, Status.LOST):
            self._save(replace(record, status=status))

    async def publish(self, previews: SessionPreviews) -> None:
        """No-op: the processes of a server read the same file."""

    async def tidy(self) -> None:
        self._forget()

    async def explain(self, record: Record | None, target: Target) -> SandboxError:
        if record is not None and record.status == Status.LIVE:
            process = self._share.process_of(record.worker)
            if process != self._share.index:
                return self._misdirected(record.thread_id, process)
        return error_for(record, target)

    def _misdirected(self, thread_id: str, process: int) -> Misdirected:
        owner = self._share.of(process).owner
        return Misdirected(f"{owner} has thread {thread_id!r}", worker=owner)

    def _save(self, record: Record) -> None:
        self._db.execute(
            f"insert or replace into sessions ({_COLUMNS}, asked, changed_at)"
            f" values ({', '.join('?' * len(_FIELDS))}, ?, ?)",
            *(getattr(record, name) for name in _FIELDS),
            json.dumps(dict(record.asked)),
            time.time(),
        )

    def _forget(self) -> None:
        """Delete sessions that ended long ago."""
        self._db.execute(
            "delete from sessions where status != 'live' and changed_at <"
            " case when coalesce(json_extract(asked, '$.persist'), 0) then ? else ? end",
            time.time() - REMEMBER_KEPT_S, time.time() - REMEMBER_S,
        )  # fmt: skip
        self.previews.forget(time.time() - REMEMBER_S)

    def _one(self, where: str, *values: str) -> Record | None:
        return next(iter(self._all(f"{where} limit 1", *values)), None)

    def _all(self, where: str, *values: str) -> list[Record]:
        rows = self._db.execute(f"select {_COLUMNS}, asked from sessions {where}", *values)
        found = (dict(zip((*_FIELDS, "asked"), row, strict=True)) for row in rows)
        return [self._record(fields) for fields in found]

    def _record(self, fields: dict[str, Any]) -> Record:
        status, worker = Status(fields["status"]), fields["worker"] or self._share.name
        asked = json.loads(fields["asked"] or "{}")
        return Record(**{**fields, "status": status, "worker": worker, "asked": asked})
