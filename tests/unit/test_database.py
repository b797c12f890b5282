"""A database that several processes open at once."""

import sqlite3
import threading
from pathlib import Path

from sandbox_server.storage.database import Database

SCHEMA = "create table if not exists a (b text);"


def test_a_new_one_is_opened_by_many_at_once(tmp_path: Path) -> None:
    failed: list[sqlite3.Error] = []
    for number in range(30):
        together = threading.Barrier(8)

        def open_it(path: Path, together: threading.Barrier) -> None:
            together.wait()
            try:
                Database(path, SCHEMA).close()
            except sqlite3.Error as exc:
                failed.append(exc)

        path = tmp_path / f"{number}.sqlite"
        openers = [threading.Thread(target=open_it, args=(path, together)) for _ in range(8)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join()
    assert failed == []
