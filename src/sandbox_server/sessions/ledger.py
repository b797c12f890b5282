"""The ledger: a worker's record of its own boxes.

A box can lie about everything it stores. So what a later process has to rely on is written here
first: that the box is warm, or which session it is given to.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable

_SCHEMA = """
create table if not exists boxes (
    box_id text primary key, build text not null, state text, begun integer not null default 0
)
"""


@dataclass(frozen=True)
class Entry:
    """One box."""

    build: str
    """The build of its warden."""
    state: Mapping[str, Any] | None = None
    """The state of its session; None for a warm box."""
    begun: bool = False
    """Whether the registry knows the session."""


class Ledger:
    """A table in the worker's SQLite file. Raises RuntimeUnavailable if it cannot be written."""

    def __init__(self, db: sqlite3.Connection | None = None) -> None:
        self._db = db or sqlite3.connect(":memory:", isolation_level=None)
        self._execute(_SCHEMA)

    def keep_warm(self, box_id: str, *, build: str) -> None:
        """Record a warm box. No-op for a box that is already recorded."""
        self._execute("insert or ignore into boxes (box_id, build) values (?, ?)", box_id, build)

    def give(self, box_id: str, state: Mapping[str, Any], *, build: str) -> None:
        """Record that a box is given to a session. Call before the box gets the state."""
        self._execute(
            "insert into boxes (box_id, build, state) values (?, ?, ?)"
            " on conflict do update set state = excluded.state, begun = 0",
            box_id,
            build,
            json.dumps(dict(state)),
        )

    def begin(self, box_id: str) -> None:
        """Record that the registry knows the box's session."""
        self._execute("update boxes set begun = 1 where box_id = ?", box_id)

    def forget(self, box_id: str) -> None:
        """Delete the entry of a box that is gone, or about to be."""
        self._execute("delete from boxes where box_id = ?", box_id)

    def entries(self) -> dict[str, Entry]:
        """All boxes, by id."""
        rows = self._execute("select box_id, build, state, begun from boxes")
        return {
            box_id: Entry(build, None if state is None else json.loads(state), bool(begun))
            for box_id, build, state, begun in rows
        }

    def keep_only(self, box_ids: Iterable[str]) -> None:
        """Delete the entries of all other boxes, which ended while no server ran."""
        for gone in self.entries().keys() - set(box_ids):
            self.forget(gone)

    def _execute(self, sql: str, *values: object) -> list[Any]:
        with translated():
            return self._db.execute(sql, values).fetchall()


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
