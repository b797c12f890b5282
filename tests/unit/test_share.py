"""Which process has which session, and what a server of several processes makes of its settings."""

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import Misdirected
from sandbox_sdk.protocol.models import Target
from sandbox_server.api.handover import _is_partial
from sandbox_server.processes.child import part_of
from sandbox_server.processes.serving import worker_settings
from sandbox_server.sessions.registry import Record, Status
from sandbox_server.sessions.share import Occupancy, Share, shared_counts
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.settings import load

ALL = [Share(name="host", index=index, count=4) for index in range(4)]


def record(share: Share, thread_id: str) -> Record:
    return Record(
        tenant="t",
        thread_id=thread_id,
        generation=1,
        session_id=f"of-{thread_id}",
        box_id=thread_id,
        status=Status.LIVE,
        created_at=0.0,
        worker=share.owner,
    )


def test_threads_are_spread_evenly() -> None:
    chosen = Counter(ALL[0].begins_at("t", f"conv-{number}") for number in range(4000))
    assert set(chosen) == set(range(4))
    assert min(chosen.values()) > 800
    other = [ALL[0].begins_at("other", f"conv-{number}") for number in range(100)]
    assert other != [ALL[0].begins_at("t", f"conv-{number}") for number in range(100)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_label_has_one_process_at_any_number_of_them(count: int) -> None:
    shares = [Share(name="host", index=index, count=count) for index in range(count)]
    for owner in ("host", *(share.owner for share in ALL)):
        assert sum(share.has(owner) for share in shares) == 1
    assert all(share.has(share.owner) for share in shares)


async def test_one_process_alone_may_begin_a_session_of_a_thread(tmp_path: Path) -> None:
    registries = [SqliteRegistry(tmp_path / "host.sqlite", share=share) for share in ALL]
    begins = ALL[0].begins_at("t", "conv")
    has = (begins + 1) % 4
    try:
        for share, registry in zip(ALL, registries, strict=True):
            if share.index != begins:
                with pytest.raises(Misdirected):
                    await registry.predecessor("t", "conv")
        assert await registries[begins].predecessor("t", "conv") is None

        live = record(ALL[has], "conv")
        await registries[has].begin(live, before=None)
        with pytest.raises(Misdirected, match=f"host~{has} has thread"):
            await registries[begins].predecessor("t", "conv")
        assert isinstance(
            await registries[begins].explain(live, Target(thread_id="conv")), Misdirected
        )
        assert [len(await registry.live()) for registry in registries].count(1) == 1

        await registries[has].end(live, Status.CLEANED)
        before = await registries[begins].predecessor("t", "conv")
        assert before is not None
        assert before.generation == 1
    finally:
        for registry in registries:
            await registry.close()


async def test_a_file_of_the_version_before_is_read(tmp_path: Path) -> None:
    """It has neither the workers of sessions nor the owners of boxes."""
    path = tmp_path / "host.sqlite"
    with sqlite3.connect(path) as old:
        old.executescript(
            "create table sessions (tenant text not null, thread_id text not null,"
            " generation integer not null, session_id text not null unique, box_id text not null,"
            " status text not null, created_at real not null, changed_at real not null,"
            " primary key (tenant, thread_id, generation));"
            "insert into sessions values ('t', 'conv', 3, 's', 'b', 'live', 0, 0);"
            "create table boxes (box_id text primary key, build text not null, state text,"
            " begun integer not null default 0);"
            "insert into boxes (box_id, build) values ('warm', '1');"
        )
    old.close()
    for share, number in ((ALL[0], 1), (ALL[1], 0), (Share(name="host"), 1)):
        registry = SqliteRegistry(path, share=share)
        assert len(await registry.live()) == len(registry.ledger.entries()) == number
        await registry.close()


async def test_opening_the_registry_again_keeps_its_locks(tmp_path: Path) -> None:
    """A process that lost them writes on into a log that another one has removed."""
    path = tmp_path / "host.sqlite"
    first = SqliteRegistry(path, worker="host")
    second = SqliteRegistry(path, worker="host")
    counts = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
    counts += "print(*db.execute('select count(*) from sessions').fetchone()); db.close()"
    look = [sys.executable, "-c", counts, str(path)]
    assert subprocess.run(look, check=True, capture_output=True).stdout == b"0\n"
    await first.begin(record(Share(name="host"), "conv"), before=None)
    assert subprocess.run(look, check=True, capture_output=True).stdout == b"1\n"
    await first.close()
    await second.close()


def test_room_is_counted_over_all_processes() -> None:
    counts = shared_counts(2)
    one, other = (Occupancy(3, counts, index=index, memory=8 << 40) for index in range(2))
    one.live, other.making = 1, 1
    assert (one.room, one.free, other.room, other.free) == (2, 1, 2, 1)
    other.live = 5
    assert (one.room, one.free) == (0, 0)
    one.promised, other.promised = 2 << 40, 5 << 40
    assert one.memory_left == other.memory_left == 1 << 40
    other.promised = 7 << 40
    assert one.memory_left == 0
    assert Occupancy(3).memory_left is None


def test_pools_are_divided_and_every_process_has_boxes_ready() -> None:
    part = part_of(load(processes=4, pool_size=5, min_pool_size=0, max_pool_size=20), 4)
    assert (part.pool_size, part.min_pool_size, part.max_pool_size) == (2, 0, 5)


def test_processes_of_a_worker_are_workers() -> None:
    settings = load(
        role="worker",
        processes=3,
        max_sessions=10,
        port=5000,
        redis_url="redis://r",
        advertise="http://10.0.0.1:6000",
        worker_id="w",
    )
    parts = [worker_settings(settings, index) for index in range(3)]
    assert [part.name() for part in parts] == ["w~0", "w~1", "w~2"]
    assert [part.listening_port() for part in parts] == [5000, 5001, 5002]
    assert [part.advertise for part in parts] == [f"http://10.0.0.1:{6000 + n}" for n in range(3)]
    assert sum(part.max_sessions for part in parts) == 10


@pytest.mark.parametrize(
    ("data", "partial"),
    [
        (b"POST /execute HTTP/1.1\r\ncontent-le", True),
        (b"POST /execute HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", True),
        (b"POST /execute HTTP/1.1\r\ncontent-length: 2\r\nhost: a\r\n\r\n{}", False),
        (b"POST /execute HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", False),
        (b"POST /execute HTTP/1.1\r\ncontent-length: 999999\r\n\r\n{", False),
        (b"POST /upload_file HTTP/1.1\r\ncontent-le", False),
        (b"GET /session?thread_id=a HTTP/1.1\r\n", False),
    ],
)
def test_a_request_waits_for_a_small_body(data: bytes, partial: bool) -> None:
    assert _is_partial(data) is partial
