"""The history of a server that is alone, in SQLite."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sandbox_sdk.protocol import models
from sandbox_server.storage.database import Database, Statement
from sandbox_server.storage.history import (
    Began,
    History,
    Kept,
    Note,
    Ran,
    command_fields,
    stored_command,
    stored_session,
)

SCHEMA = """
create table if not exists sessions (
    number integer primary key autoincrement, session_id text not null unique, tenant text not null,
    sandbox_id text not null, thread_id text not null, generation integer not null,
    provider text not null, environment text, agent text, worker text not null, state text not null,
    at real not null, ended_at real, ran integer not null default 0
);
create index if not exists sessions_of on sessions (tenant, number);
create index if not exists sessions_thread on sessions (tenant, thread_id, number);
create index if not exists sessions_ended on sessions (ended_at) where ended_at is not null;
create table if not exists commands (
    number integer primary key autoincrement, session_id text not null, command_id text not null,
    command text not null, at real not null, exit_code integer, duration_ms real not null,
    output text not null, unique (session_id, command_id)
);
"""
_SESSION = ("session_id", "sandbox_id", "thread_id", "generation", "provider", "environment",
            "agent", "worker", "state", "at", "ended_at", "ran")  # fmt: skip
_COMMAND = ("command_id", "command", "at", "exit_code", "duration_ms", "output")


class SqliteHistory(History):
    """Writes in a thread: a disk may be slow. The database needs SCHEMA."""

    def __init__(self, database: Database, kept: Kept) -> None:
        self._db = database
        self._kept = kept

    async def write(self, notes: Sequence[Note]) -> None:
        await asyncio.to_thread(self._write, notes)

    def _write(self, notes: Sequence[Note]) -> None:
        with self._db.transaction() as execute:
            for note in notes:
                if isinstance(note, Began):
                    self._began(execute, note)
                elif isinstance(note, Ran):
                    fields = {"session_id": note.session_id, **command_fields(note)}
                    _insert(execute, "insert or replace into commands", fields)
                else:
                    execute(
                        "update sessions set state = ?, ended_at = ?"
                        " where session_id = ? and ended_at is null",
                        note.state, note.at, note.session_id,
                    )  # fmt: skip
            ran = Counter(note.session_id for note in notes if isinstance(note, Ran))
            for session_id, count in ran.items():
                self._counted(execute, session_id, count)

    def _began(self, execute: Statement, note: Began) -> None:
        _insert(execute, "insert or ignore into sessions", {**asdict(note), "state": "live"})
        oldest = (
            "select session_id from sessions where tenant = ? order by number desc limit -1"
            " offset ?"
        )
        for table in ("commands", "sessions"):
            execute(
                f"delete from {table} where session_id in ({oldest})",
                note.tenant, self._kept.sessions,
            )  # fmt: skip

    def _counted(self, execute: Statement, session_id: str, count: int) -> None:
        """After commands of a session: how many there were, and no more of them than are kept. Once
        for all that are written together, since finding the oldest walks over all of them."""
        execute("update sessions set ran = ran + ? where session_id = ?", count, session_id)
        execute(
            "delete from commands where number <= (select number from commands"
            " where session_id = ? order by number desc limit 1 offset ?) and session_id = ?",
            session_id, self._kept.commands, session_id,
        )  # fmt: skip

    async def find(
        self, tenant: str, request: models.StoredSessionsRequest
    ) -> models.StoredSessionList:
        where, values = _where(tenant, request)
        rows = await asyncio.to_thread(
            self._db.execute,
            f"select {', '.join(_SESSION)}, {_COUNT} from sessions where {where}"
            f" order by number desc limit {request.limit + 1}",
            *values,
        )
        return models.StoredSessionList(
            sessions=[_session(row) for row in rows[: request.limit]],
            truncated=len(rows) > request.limit,
        )

    async def get(
        self, tenant: str, session_id: str
    ) -> tuple[models.StoredSession, list[models.StoredCommand], bool] | None:
        return await asyncio.to_thread(self._get, tenant, session_id)

    def _get(
        self, tenant: str, session_id: str
    ) -> tuple[models.StoredSession, list[models.StoredCommand], bool] | None:
        rows = self._db.execute(
            f"select {', '.join(_SESSION)}, {_COUNT} from sessions"
            " where tenant = ? and session_id = ?",
            tenant, session_id,
        )  # fmt: skip
        if not rows:
            return None
        commands = self._db.execute(
            f"select {', '.join(_COMMAND)} from commands where session_id = ? order by number",
            session_id,
        )
        ran = int(rows[0][_SESSION.index("ran")])
        log = [stored_command(dict(zip(_COMMAND, row, strict=True))) for row in commands]
        return _session(rows[0]), log, ran > len(log)

    async def tidy(self) -> None:
        await asyncio.to_thread(self._tidy, time.time() - self._kept.retention_s)

    def _tidy(self, old: float) -> None:
        gone = "select session_id from sessions where ended_at < ?"
        with self._db.transaction() as execute:
            execute(f"delete from commands where session_id in ({gone})", old)
            execute("delete from sessions where ended_at < ?", old)


def _insert(execute: Statement, insert: str, fields: dict[str, object]) -> None:
    execute(
        f"{insert} ({', '.join(fields)}) values ({', '.join('?' * len(fields))})", *fields.values()
    )


_COUNT = (
    "(select count(*) from commands where commands.session_id = sessions.session_id) as commands"
)


def _where(tenant: str, request: models.StoredSessionsRequest) -> tuple[str, list[object]]:
    conditions: list[tuple[str, list[object]]] = [("tenant = ?", [tenant])]
    asked = {
        "thread_id": request.thread,
        "environment": request.environment,
        "state": request.state,
    }
    conditions += [(f"{name} = ?", [value]) for name, value in asked.items() if value is not None]
    if request.before is not None:
        older = "number < coalesce((select number from sessions where session_id = ?), 0)"
        conditions.append((older, [request.before]))
    if request.text is not None:
        names = " or ".join(
            f"instr({name}, ?) > 0" for name in ("thread_id", "session_id", "environment", "agent")
        )
        in_commands = (
            "exists (select 1 from commands where commands.session_id = sessions.session_id"
            " and instr(command, ?) > 0)"
        )
        conditions.append((f"({names} or {in_commands})", [request.text] * 5))
    where = " and ".join(condition for condition, _ in conditions)
    return where, [value for _, values in conditions for value in values]


def _session(row: tuple[Any, ...]) -> models.StoredSession:
    return stored_session(dict(zip((*_SESSION, "commands"), row, strict=True)))
