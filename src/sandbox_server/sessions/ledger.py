"""The ledger: a worker's record of its own boxes.

A box can lie about everything it stores. So what a later process has to rely on is written here
first: that the box is warm, or which session it is given to.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.sessions.share import Share

_SCHEMA = """
create table if not exists boxes (
    box_id text primary key, build text not null, state text, begun integer not null default 0,
    owner text, kept text
)
"""


@dataclass(frozen=True)
class Entry:
    """One box."""

    build: str
    """Its warden and what it was made from, see Pool.build."""
    state: Mapping[str, Any] | None = None
    """The state of its session; None for a warm box."""
    begun: bool = False
    """Whether the registry knows the session."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What is remembered for the session and does not concern the box."""


class Ledger:
    """A table in the worker's SQLite file. Raises RuntimeUnavailable if it cannot be written.

    Processes of one server share the file; each sees the boxes of its own share.
    """

    def __init__(self, db: sqlite3.Connection | None = None, share: Share | None = None) -> None:
        self._db = db or sqlite3.connect(":memory:", isolation_level=None)
        self._share = share or Share(name="")
        self._execute(_SCHEMA)
        add_column(self._db, "boxes", "owner text")
        add_column(self._db, "boxes", "kept text")

    def keep_warm(self, box_id: str, *, build: str) -> None:
        """Record a warm box. No-op for a box that is already recorded."""
        self._execute(
            "insert or ignore into boxes (box_id, build, owner) values (?, ?, ?)",
            box_id,
            build,
            self._share.owner,
        )

    def give(self, box_id: str, state: Mapping[str, Any], *, build: str) -> None:
        """Record that a box is given to a session. Call before the box gets the state."""
        self._execute(
            "insert into boxes (box_id, build, state, owner) values (?, ?, ?, ?)"
            " on conflict do update set state = excluded.state, begun = 0, kept = null",
            box_id,
            build,
            json.dumps(dict(state)),
            self._share.owner,
        )

    def keep(self, box_id: str, kept: Mapping[str, Any]) -> None:
        """Remember something for the session of a box. Call before the session begins."""
        text = json.dumps(dict(kept))
        self._execute("update boxes set kept = ? where box_id = ?", text, box_id)

    def begin(self, box_id: str) -> None:
        """Record that the registry knows the box's session."""
        self._execute("update boxes set begun = 1 where box_id = ?", box_id)

    def forget(self, box_id: str) -> None:
        """Delete the entry of a box that is gone, or about to be."""
        self._execute("delete from boxes where box_id = ?", box_id)

    def put(self, box_id: str, entry: Entry) -> None:
        """Record a box that was taken over as its last owner had it."""
        self._execute(
            "insert or replace into boxes (box_id, build, state, begun, owner, kept)"
            " values (?, ?, ?, ?, ?, ?)",
            box_id,
            entry.build,
            None if entry.state is None else json.dumps(dict(entry.state)),
            int(entry.begun),
            self._share.owner,
            json.dumps(dict(entry.kept)),
        )

    def entry(self, box_id: str) -> Entry | None:
        return self._entries("where box_id = ?", box_id).get(box_id)

    def entries(self) -> dict[str, Entry]:
        """All boxes, by id."""
        return self._entries()

    def _entries(self, where: str = "", *values: object) -> dict[str, Entry]:
        columns = "box_id, build, state, begun, owner, kept"
        rows = self._execute(f"select {columns} from boxes {where}", *values)
        return {
            box_id: Entry(
                build,
                None if state is None else json.loads(state),
                bool(begun),
                json.loads(kept or "{}"),
            )
            for box_id, build, state, begun, owner, kept in rows
            if self._share.has(owner or self._share.name)
        }

    def keep_only(self, box_ids: Iterable[str]) -> None:
        """Delete the entries of all other boxes, which ended while no server ran."""
        for gone in self.entries().keys() - set(box_ids):
            self.forget(gone)

    def _execute(self, sql: str, *values: object) -> list[Any]:
        with translated():
            return self._db.execute(sql, values).fetchall()


def note_of(entry: Entry | None) -> str:
    """An entry as text, for a worker that takes the box over. Whether the session has begun is not
    in it: that worker asks the registry."""
    if entry is None:
        return ""
    told = {"build": entry.build, "state": entry.state, "kept": dict(entry.kept)}
    return json.dumps(told, separators=(",", ":"))


def entry_from(note: str) -> Entry | None:
    """The inverse of note_of; None if there is no entry that this version can read."""
    try:
        told = json.loads(note)
        state, kept = told["state"], told["kept"]
        if not isinstance(state, dict | None) or not isinstance(kept, dict):
            return None
        return Entry(str(told["build"]), state, kept=kept)
    except (ValueError, KeyError, TypeError):
        return None


def add_column(db: sqlite3.Connection, table: str, column: str) -> None:
    """Add a column that files of earlier versions lack."""
    known = {row[1] for row in db.execute(f"pragma table_info({table})")}
    if column.split()[0] not in known:
        db.execute(f"alter table {table} add column {column}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate SQLite errors, such as a full disk, to RuntimeUnavailable."""
    try:
        yield
    except sqlite3.Error as exc:
        raise RuntimeUnavailable(
            f"the server cannot write its records ({exc}): check the disk of its state folder;"
            " retry in 5 s",
            retry_after_s=5,
        ) from exc
