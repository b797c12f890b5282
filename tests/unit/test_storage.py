"""The store, artifacts and the history, without a box."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from sandbox_sdk.protocol.errors import FileTooLarge, NotFound, RuntimeUnavailable
from sandbox_sdk.protocol.models import ArtifactsRequest, StoredSessionsRequest
from sandbox_server.storage import artifacts, sqlite_history
from sandbox_server.storage.artifacts import Artifacts, Origin
from sandbox_server.storage.database import Database
from sandbox_server.storage.history import Began, Ended, Journal, Kept, Note, Ran
from sandbox_server.storage.sqlite_history import SqliteHistory
from sandbox_server.storage.store import FolderStore

MINE = Origin(tenant="a", thread_id="t", session_id="s")
KEPT = Kept(retention_s=100, sessions=3, commands=2)


async def chunks(*data: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
    if fails:
        raise RuntimeUnavailable("the box is gone")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


# The store


async def test_a_stream_is_stored_under_its_digest_and_privately(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", fresh_s=0)
    stored = await store.put(chunks(b"he", b"llo"))
    assert (stored.digest, stored.size) == (hashlib.sha256(b"hello").hexdigest(), 5)
    assert await store.put(chunks(b"hello")) == stored
    (path,) = files(tmp_path / "store")
    assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    async with store.open(stored.digest) as content:
        assert b"".join([chunk async for chunk in content]) == b"hello"
    assert path.stat().st_size == 5
    assert await store.delete(stored.digest)
    assert await store.delete(stored.digest)
    assert not path.exists()
    for missing in (stored.digest, "../../etc/passwd"):
        with pytest.raises(NotFound):
            async with store.open(missing):
                pass


async def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with pytest.raises(RuntimeUnavailable):
        await store.put(chunks(b"half", fails=True))
    assert files(tmp_path) == []
    left = tmp_path / "new-of-a-killed-process"
    left.touch()
    os.utime(left, (0, 0))
    FolderStore(tmp_path)
    assert files(tmp_path) == []


async def test_what_was_just_put_is_not_deleted(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, fresh_s=60)
    stored = await store.put(chunks(b"x"))
    assert not await store.delete(stored.digest)
    (path,) = files(tmp_path)
    os.utime(path, (0, 0))
    assert await store.delete(stored.digest)


# Artifacts


def kept(folder: Path, *, quota: int = 10, retention_s: float = 100) -> Artifacts:
    return Artifacts(
        FolderStore(folder, fresh_s=0),
        Database(None, artifacts.SCHEMA),
        worker="w",
        quota_bytes=quota,
        retention_s=retention_s,
    )


async def test_artifacts_of_others_are_as_missing(tmp_path: Path) -> None:
    found = kept(tmp_path)
    mine = await found.keep(MINE, "/workspace/f", 1, chunks(b"x"))
    assert found.find("b", ArtifactsRequest()).artifacts == []
    for name in (mine.artifact_id, "none@w"):
        with pytest.raises(NotFound, match=f"no artifact '{name}'"):
            found.get("b", name)
        with pytest.raises(NotFound, match=f"no artifact '{name}'"):
            await found.delete("b", name)
    assert found.get("a", mine.artifact_id) == mine


async def test_bytes_stay_while_somebody_refers_to_them(tmp_path: Path) -> None:
    found = kept(tmp_path)
    theirs = Origin(tenant="b", thread_id="t", session_id="s2")
    first = await found.keep(MINE, "/workspace/f", 1, chunks(b"x"))
    assert await found.keep(MINE, "/workspace/f", 1, chunks(b"x")) == first
    second = await found.keep(theirs, "/workspace/g", 1, chunks(b"x"))
    await found.delete("a", first.artifact_id)
    assert len(files(tmp_path)) == 1
    await found.delete("b", second.artifact_id)
    assert files(tmp_path) == []


async def test_the_oldest_go_over_the_quota(tmp_path: Path) -> None:
    found = kept(tmp_path, quota=10)
    for number in range(4):
        await found.keep(MINE, f"/{number}", 4, chunks(bytes([number]) * 4))
    left = found.find("a", ArtifactsRequest()).artifacts
    assert [artifact.path for artifact in left] == ["/3", "/2"]
    assert len(files(tmp_path)) == 2
    for told, data in ((11, b"x"), (1, b"x" * 11)):  # By what is announced, and by what comes.
        with pytest.raises(FileTooLarge, match="SANDBOX_ARTIFACT_QUOTA"):
            await found.keep(MINE, "/big", told, chunks(data))
    assert len(files(tmp_path)) == 2


async def test_artifacts_end_with_their_retention(tmp_path: Path) -> None:
    found = kept(tmp_path, retention_s=0)
    await found.keep(MINE, "/f", 1, chunks(b"x"))
    await found.tidy()
    assert found.find("a", ArtifactsRequest()).artifacts == []
    assert files(tmp_path) == []


# The history


def began(number: int, at: float = 1.0) -> Began:
    return Began(
        tenant="a",
        session_id=f"s{number}",
        sandbox_id=f"b{number}",
        thread_id=f"t{number}",
        generation=1,
        provider="docker",
        environment=None,
        agent=None,
        worker="w",
        at=at,
    )


def ran(number: int, command: str) -> Ran:
    return Ran(
        tenant="a",
        session_id=f"s{number}",
        command_id=command,
        command=command,
        at=1.0,
        exit_code=0,
        duration_ms=1.0,
        output="x" * 5000,
    )


def history() -> SqliteHistory:
    return SqliteHistory(Database(None, sqlite_history.SCHEMA), KEPT)


async def test_the_history_is_bounded() -> None:
    stored = history()
    notes: list[Note] = [began(number) for number in range(5)]
    notes += [ran(4, f"echo {number}") for number in range(5)]
    await stored.write(notes)
    found = await stored.find("a", StoredSessionsRequest())
    assert [session.session_id for session in found.sessions] == ["s4", "s3", "s2"]
    one = await stored.get("a", "s4")
    assert one is not None
    session, commands, truncated = one
    assert ([each.command for each in commands], truncated) == (["echo 3", "echo 4"], True)
    assert session.commands == 2
    assert commands[0].output.startswith("[904 characters left out]\n")
    assert await stored.get("b", "s4") is None
    assert (await stored.find("b", StoredSessionsRequest())).sessions == []


async def test_ended_sessions_are_forgotten_after_their_retention() -> None:
    stored = history()
    await stored.write([began(1), began(2), ran(1, "echo"), began(1)])
    await stored.write([Ended(tenant="a", session_id="s1", state="lost", at=5.0)])
    await stored.tidy()
    found = await stored.find("a", StoredSessionsRequest())
    assert [session.session_id for session in found.sessions] == ["s2"]


async def test_notes_that_cannot_be_written_are_written_later() -> None:
    class Failing(SqliteHistory):
        fails = True

        async def write(self, notes: object) -> None:
            if self.fails:
                raise RuntimeUnavailable("the disk is full")
            await super().write(notes)  # type: ignore[arg-type]

    stored = Failing(Database(None, sqlite_history.SCHEMA), KEPT)
    async with Journal(stored) as journal:
        journal.note(began(1))
        await journal.flush()
        assert (await stored.find("a", StoredSessionsRequest())).sessions == []
        stored.fails = False
        journal.note(began(2))
        async with asyncio.timeout(5):
            while len((await stored.find("a", StoredSessionsRequest())).sessions) < 2:
                await asyncio.sleep(0.01)


async def test_what_comes_while_notes_are_written_is_written_or_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(SqliteHistory):
        more = 0

        async def write(self, notes: Sequence[Note]) -> None:
            await super().write(notes)
            for number in range(self.more):
                journal.note(began(100 + number))
            self.more = 0

    monkeypatch.setattr("sandbox_server.storage.history.MOST_HELD", 3)
    kept = Kept(retention_s=100, sessions=100, commands=2)
    stored = Slow(Database(None, sqlite_history.SCHEMA), kept)
    async with Journal(stored) as journal:
        for more, lost in ((2, 0), (3, 0), (5, 2)):
            for number in range(3):
                journal.note(began(10 * more + number))
            stored.more = more
            with structlog.testing.capture_logs() as logs:
                await journal.flush()
                await journal.flush()
            told = [line["notes"] for line in logs if line["event"] == "history.dropped"]
            assert sum(told) == lost
            found = (await stored.find("a", StoredSessionsRequest())).sessions
            written = {session.session_id for session in found}
            assert {f"s{100 + number}" for number in range(lost, more)} <= written


async def test_without_a_history_nothing_is_held() -> None:
    async with Journal() as journal:
        journal.note(began(1))
        assert not journal.wants_commands
        await journal.flush()
