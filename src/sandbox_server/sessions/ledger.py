"""The ledger: a worker's record of its own boxes.

A box can lie about everything it stores. So what a later process has to rely on is written here
first: that the box is warm, or which session it is given to.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_server.runtime.base import Box, SharedBox
from sandbox_server.sessions.share import Share
from sandbox_server.storage.database import Database
from sandbox_server.tasks import TaskSet

log = structlog.get_logger()

_CLOSE_S = 5.0
SCHEMA = """
create table if not exists boxes (
    box_id text primary key, build text not null, state text, begun integer not null default 0,
    owner text, kept text
);
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

    def __init__(self, db: Database | None = None, share: Share | None = None) -> None:
        """db: with SCHEMA; without, one in memory."""
        self._db = db or Database(None, SCHEMA)
        self._share = share or Share(name="")
        self._db.add_column("boxes", "owner text")
        self._db.add_column("boxes", "kept text")

    def keep_warm(self, box_id: str, *, build: str) -> None:
        """Record a warm box. No-op for a box that is already recorded."""
        self._db.execute(
            "insert or ignore into boxes (box_id, build, owner) values (?, ?, ?)",
            box_id, build, self._share.owner,
        )  # fmt: skip

    def give(self, box_id: str, state: Mapping[str, Any], *, build: str) -> None:
        """Record that a box is given to a session. Call before the box gets the state."""
        self._db.execute(
            "insert into boxes (box_id, build, state, owner) values (?, ?, ?, ?)"
            " on conflict do update set state = excluded.state, begun = 0, kept = null",
            box_id, build, json.dumps(dict(state)), self._share.owner,
        )  # fmt: skip

    def keep(self, box_id: str, kept: Mapping[str, Any]) -> None:
        """Remember something for the session of a box. Call before the session begins."""
        text = json.dumps(dict(kept))
        self._db.execute("update boxes set kept = ? where box_id = ?", text, box_id)

    def begin(self, box_id: str) -> None:
        """Record that the registry knows the box's session."""
        self._db.execute("update boxes set begun = 1 where box_id = ?", box_id)

    def forget(self, box_id: str) -> None:
        """Delete the entry of a box that is gone, or about to be."""
        self._db.execute("delete from boxes where box_id = ?", box_id)

    def put(self, box_id: str, entry: Entry) -> None:
        """Record a box that was taken over as its last owner had it."""
        self._db.execute(
            "insert or replace into boxes (box_id, build, state, begun, owner, kept)"
            " values (?, ?, ?, ?, ?, ?)",
            box_id, entry.build, None if entry.state is None else json.dumps(dict(entry.state)),
            int(entry.begun), self._share.owner, json.dumps(dict(entry.kept)),
        )  # fmt: skip

    def entry(self, box_id: str) -> Entry | None:
        return self._entries("where box_id = ?", box_id).get(box_id)

    def entries(self) -> dict[str, Entry]:
        """All boxes, by id."""
        return self._entries()

    def _entries(self, where: str = "", *values: object) -> dict[str, Entry]:
        columns = "box_id, build, state, begun, owner, kept"
        rows = self._db.execute(f"select {columns} from boxes {where}", *values)
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


def unwritable(exc: sqlite3.Error) -> RuntimeUnavailable:
    """The error of a session that cannot be recorded."""
    return RuntimeUnavailable(
        f"the server cannot write its records ({exc}): check the disk of its state folder;"
        " retry in 5 s",
        retry_after_s=5,
    )


class Sharing:
    """The entries of the ledger, on boxes that belong to no machine. Close it."""

    def __init__(self, ledger: Ledger, worker: str, *, on: bool = True) -> None:
        """on: whether there are others who could take boxes over."""
        self._ledger = ledger
        self._worker = worker
        self._on = on
        self._changed: dict[str, SharedBox] = {}
        self._writes: TaskSet[None] = TaskSet()

    def __repr__(self) -> str:
        return f"<Sharing of {self._worker} {len(self._changed)} unwritten>"

    def of(self, box: Box) -> SharedBox | None:
        """The box, if others can take it over."""
        return box if self._on and isinstance(box, SharedBox) else None

    async def claim(self, box: Box) -> bool:
        """Write the entry of a box on it, with this worker as its owner; False if another has
        claimed it. Raises RuntimeUnavailable."""
        if (shared := self.of(box)) is None:
            return True
        return await shared.claim(self._worker, note_of(self._ledger.entry(box.id)))

    async def warmed(self, box: Box) -> None:
        """The same for one that nobody uses. If that fails, nobody takes the box over."""
        entry = self._ledger.entry(box.id)
        if (shared := self.of(box)) is None or entry is None:
            return
        try:
            await shared.write(note_of(entry), warm=entry.build)
        except SandboxError as exc:
            log.warning("box.not_shared", box=box.id, why=exc.message)

    def keep(self, box: Box) -> None:
        """Write an entry that has changed, in the background."""
        if (shared := self.of(box)) is not None:
            self._changed[box.id] = shared
            self._writes.start(partial(self._write, box.id))

    async def _write(self, box_id: str) -> None:
        """The latest entry, unless an earlier write has seen it already."""
        if (box := self._changed.pop(box_id, None)) is None:
            return
        try:
            await box.write(note_of(self._ledger.entry(box_id)))
        except SandboxError as exc:
            log.warning("box.not_shared", box=box_id, why=exc.message)

    async def close(self) -> None:
        await self._writes.stop(after_s=_CLOSE_S)
