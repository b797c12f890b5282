"""What is still to be sent to webhooks, on disk: it outlives the server. Its processes share it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.private import lock_file, private_folder, unlock_file
from sandbox_server.storage.database import Database

MOST_PENDING = 20_000
MOST_DEAD = 10_000
_COUNTED_EVERY = 100
"""Counting them takes longer than adding one."""
_SCHEMA = """
create table if not exists deliveries (
    id integer primary key autoincrement,
    webhook text not null,
    thread text not null,
    event_id text not null,
    body text not null,
    attempts integer not null default 0,
    due real not null,
    dead integer not null default 0,
    why text not null default ''
);
create index if not exists by_due on deliveries (dead, webhook, thread, id);
create table if not exists promises (
    command_id text primary key,
    session_id text not null,
    webhook text not null
);
create index if not exists by_session on promises (session_id);
"""
_FORGET = "delete from promises where command_id = ?"
_FIELDS = "id, webhook, thread, event_id, body, attempts, due, why"


@dataclass(frozen=True)
class Delivery:
    id: int
    webhook: str
    thread: str
    """What has to come in order: a tenant and its thread."""
    event_id: str
    body: str
    attempts: int
    due: float
    why: str
    """Of the last attempt that failed."""


class Outbox:
    """Every method may raise RuntimeUnavailable."""

    def __init__(self, path: Path | None) -> None:
        self._database = Database(path, _SCHEMA)
        self._path = path
        self._lock: int | None = None
        self._room = 0
        """How many can be added before they are counted again."""

    def close(self) -> None:
        self._database.close()
        if self._lock is not None:
            unlock_file(self._lock)

    def is_ours(self) -> bool:
        """Whether this process sends, as one of those that share it does. Raises OSError."""
        if self._path is not None and self._lock is None:
            try:
                self._lock = lock_file(self._path.with_name(f"{self._path.name}.lock"))
            except BlockingIOError:
                return False
        return True

    def add(
        self, webhook: str, thread: str, event_id: str, body: str, keeps: Sequence[str] = ()
    ) -> bool:
        """False if there are too many already. keeps: commands whose promises this keeps."""
        if self._room <= 0:
            sql = "select count(*) from deliveries where dead = 0"
            ((pending,),) = self._database.execute(sql)
            self._room = min(MOST_PENDING - pending, _COUNTED_EVERY)
        if self._room <= 0:
            return False
        self._room -= 1
        sql = "insert into deliveries (webhook, thread, event_id, body, due) values (?, ?, ?, ?, ?)"
        kept = [(_FORGET, (command_id,)) for command_id in keeps]
        self._database.write([(sql, (webhook, thread, event_id, body, time.time())), *kept])
        return True

    def first_of_each(self, webhook: str, limit: int) -> list[Delivery]:
        """The oldest of every thread: those after it wait. Soonest due first."""
        sql = (
            f"select {_FIELDS} from deliveries where id in (select min(id) from deliveries"
            " where dead = 0 and webhook = ? group by thread) order by due limit ?"
        )
        return [Delivery(*row) for row in self._database.execute(sql, webhook, limit)]

    def done(self, delivery_id: int) -> None:
        self._database.execute("delete from deliveries where id = ?", delivery_id)

    def failed(self, delivery_id: int, *, again_at: float | None, why: str) -> None:
        """again_at: None if it is given up."""
        sql = (
            "update deliveries set attempts = attempts + 1, due = ?, dead = ?, why = ? where id = ?"
        )
        gone = (
            "delete from deliveries where dead = 1 and id not in (select id from deliveries where"
            " dead = 1 order by id desc limit ?)"
        )
        values = (again_at or 0.0, int(again_at is None), why[:500], delivery_id)
        self._database.write([(sql, values), (gone, (MOST_DEAD,))])

    # Commands in the background that have named a webhook for their end

    def promise(self, command_id: str, session_id: str, webhook: str) -> None:
        sql = "insert or replace into promises (command_id, session_id, webhook) values (?, ?, ?)"
        self._database.execute(sql, command_id, session_id, webhook)

    def promised(self, session_id: str) -> list[tuple[str, str]]:
        """Commands and their webhooks."""
        sql = "select command_id, webhook from promises where session_id = ?"
        return [(row[0], row[1]) for row in self._database.execute(sql, session_id)]

    def promise_of(self, command_id: str) -> str | None:
        """The webhook to be told of its end."""
        sql = "select webhook from promises where command_id = ?"
        found = self._database.execute(sql, command_id)
        return str(found[0][0]) if found else None

    def forget(self, command_id: str) -> None:
        self._database.execute(_FORGET, command_id)

    # Those that were given up

    def give_up_all_but(self, webhooks: Collection[str]) -> None:
        """What is for webhooks that there are no more."""
        marks = ", ".join("?" * len(webhooks))
        why = "there is no such webhook any more"
        sql = f"update deliveries set dead = 1, why = ? where dead = 0 and webhook not in ({marks})"
        gone = f"delete from promises where webhook not in ({marks})"
        self._database.write([(sql, (why, *webhooks)), (gone, tuple(webhooks))])

    def dead(self, limit: int = 100) -> list[Delivery]:
        """Those that were given up, newest first."""
        sql = f"select {_FIELDS} from deliveries where dead = 1 order by id desc limit ?"
        return [Delivery(*row) for row in self._database.execute(sql, limit)]

    def revive(self) -> int:
        """Send those that were given up once more; how many there were."""
        ((count,),) = self._database.execute("select count(*) from deliveries where dead = 1")
        sql = "update deliveries set dead = 0, attempts = 0, due = ? where dead = 1"
        self._database.execute(sql, time.time())
        return int(count)


def open_outbox(state: Path, name: str) -> Outbox:
    """Close it. Raises RuntimeUnavailable."""
    try:
        private_folder(state)
        return Outbox(state / f"{name}.outbox")
    except (OSError, sqlite3.Error) as exc:
        raise RuntimeUnavailable(f"webhooks need the state folder {state}: {exc}") from None
