"""The SQLite files of a server. Its processes share them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.private import private_file

Statement = Callable[..., list[tuple[Any, ...]]]
"""Takes SQL and its values; returns the rows."""
_BUSY_S = 5.0
_LOOK_AGAIN_S = 0.01


def _unusable(exc: sqlite3.Error) -> RuntimeUnavailable:
    return RuntimeUnavailable(f"what is stored of sessions cannot be used: {exc}")


class Database:
    """In memory without a path. May be used by several threads. Close it."""

    def __init__(
        self,
        path: Path | None,
        schema: str,
        *,
        unusable: Callable[[sqlite3.Error], RuntimeUnavailable] = _unusable,
    ) -> None:
        """unusable: the error of whoever finds a full disk, for example."""
        self._unusable = unusable
        if path is not None:
            private_file(path)  # SQLite creates its -wal and -shm files with the same mode.
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path or ":memory:", isolation_level=None, timeout=_BUSY_S, check_same_thread=False
        )
        self._set_up(schema)

    def _set_up(self, schema: str) -> None:
        """Raises sqlite3.Error. Of several processes that open a new file at once, SQLite lets one
        choose its mode, and does not have the others wait for that."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                self._db.execute("pragma journal_mode=wal")
                self._db.execute("pragma synchronous=normal")
                self._db.executescript(schema)
                return
            except sqlite3.OperationalError as exc:
                if "locked" not in str(exc) or time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_AGAIN_S)

    def add_column(self, table: str, column: str) -> None:
        """Add one that files of earlier versions lack. column: as in `create table`."""
        with self.transaction() as execute:  # Of several processes, one adds it.
            known = {row[1] for row in execute(f"pragma table_info({table})")}
            if column.split()[0] not in known:
                execute(f"alter table {table} add column {column}")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Raises RuntimeUnavailable."""
        with self._lock, self._translated():
            return self._db.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Statement]:
        """Statements of which all count, or none. Raises RuntimeUnavailable."""

        def execute(sql: str, *values: object) -> list[tuple[Any, ...]]:
            return self._db.execute(sql, values).fetchall()

        with self._lock, self._translated():
            self._db.execute("begin immediate")
            try:
                yield execute
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def write(self, statements: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        """All of them, or none. Raises RuntimeUnavailable."""
        with self.transaction() as execute:
            for sql, values in statements:
                execute(sql, *values)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise self._unusable(exc) from exc
