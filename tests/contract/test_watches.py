"""A watched folder: everything that changes in it is told once, or that something is missing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import FileChange
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from sandbox_warden.watch_log import MAX_EVENTS
from sandbox_warden.watching import MAX_WATCHES

from .test_files import upload

MIB = 1 << 20


class Reader:
    """Reads a watch from where it was."""

    def __init__(self, warden: WardenClient, watch_id: str) -> None:
        self.warden = warden
        self.watch_id = watch_id
        self.position = 0

    @classmethod
    async def of(cls, warden: WardenClient, path: str, *, recursive: bool = False) -> "Reader":
        watch = await warden.watch(path, recursive=recursive)
        return cls(warden, watch.watch_id)

    async def next(self) -> list[FileChange]:
        found = await self.warden.watched(self.watch_id, after=self.position, wait_s=30)
        self.position = found.position
        return found.events

    async def until(self, kind: str, path: str) -> list[str]:
        """All changes up to one of them, as text."""
        told: list[str] = []
        while f"{kind} {path}" not in told:
            told += [f"{each.kind} {each.path}" for each in await self.next()]
        return told


@pytest.mark.kernel
async def test_what_changes_in_a_folder_is_told_in_order(warden: WardenClient) -> None:
    await warden.run("mkdir d; echo old > d/old")
    reader = await Reader.of(warden, "d")
    await warden.run(
        "cd d; echo x > new; chmod 600 new; mv new newer; mkdir sub; touch sub/unseen; rm old;"
        " ln -s newer link; rmdir nothing; touch end"
    )
    told = await reader.until("create", "end")
    expected = ["create new", "write new", "chmod new", "rename new", "create newer"]
    expected += ["create sub", "remove old", "create link", "create end"]
    assert [each for each in told if each in expected] == expected
    assert not any("unseen" in each for each in told)
    more = {each for each in told if each not in expected}
    assert more <= {"write end", "chmod end"}, "of the last touch, which is more than one change"


async def test_a_change_has_its_type(warden: WardenClient) -> None:
    reader = await Reader.of(warden, "/workspace")
    await warden.run("mkdir a; ln -s a b; touch c; mkfifo e; rm -r a; touch z")
    changes: list[FileChange] = []
    while not any(change.path == "z" for change in changes):
        changes += await reader.next()
    types = {change.path: change.type for change in changes if change.kind == "create"}
    assert types == {"a": "directory", "b": "symlink", "c": "file", "e": "other", "z": "file"}


async def test_new_folders_are_watched_with_what_was_in_them_first(warden: WardenClient) -> None:
    await warden.run("mkdir -p d/a/b")
    reader = await Reader.of(warden, "d", recursive=True)
    await warden.run("cd d; touch a/b/deep; mkdir -p n/e/w; touch n/1 n/e/2 n/e/w/3")
    told: list[str] = []
    while "create n/e/w/3" not in told:
        told += await reader.until("create", "n/e/w/3")
    for path in ("a/b/deep", "n", "n/e", "n/e/w", "n/1", "n/e/2", "n/e/w/3"):
        assert told.count(f"create {path}") == 1, (path, told)
    await warden.run("cd d; echo x > n/e/w/3; mv n m; touch m/e/w/4")
    told = await reader.until("create", "m/e/w/4")
    assert told.index("write n/e/w/3") < told.index("rename n") < told.index("create m")
    assert "create m/e/w/3" in told
    await warden.run("cd d; rm -r m; touch end")
    told = await reader.until("create", "end")
    assert {"remove m/e/w/4", "remove m/e/w", "remove m"} <= set(told)


async def test_an_upload_is_told_under_its_own_name(warden: WardenClient) -> None:
    reader = await Reader.of(warden, "/workspace", recursive=True)

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100_000
            await warden.run("true")

    await warden.put("sub/file", slowly())
    await upload(warden, "sub/file", b"again")
    with pytest.raises(errors.FileTooLarge):
        await upload(warden, "large", b"x" * 2000, limit=1000)
    await warden.rename("sub/file", "/tmp/file")
    await warden.rename("/tmp/file", "back")
    await warden.run("touch end")
    told = await reader.until("create", "end")
    assert not any(".upload" in each or "#" in each for each in told), told
    written = ["write sub/file"]
    assert [each for each in told if each.endswith("file")] in (
        ["create sub/file", "chmod sub/file", *written, *written, "remove sub/file"],
        ["create sub/file", "chmod sub/file", *written, "remove sub/file"],  # If not yet read.
    )
    assert "create back" in told


async def test_a_reader_waits_and_is_woken(warden: WardenClient) -> None:
    reader = await Reader.of(warden, "/workspace")
    assert (await warden.watched(reader.watch_id, after=0, wait_s=0)).events == []
    waiting = [asyncio.create_task(reader.until("create", "f")) for _ in range(3)]
    await warden.run("touch f")
    await asyncio.gather(*waiting)


async def test_a_watch_outlives_its_stream(box: WardenBox, warden: WardenClient) -> None:
    reader = await Reader.of(warden, "/workspace")
    await warden.run("touch one")
    await warden.close()
    async with box.agent(epoch=2) as later:
        reader.warden = later
        await later.run("touch two")
        assert [each for each in await reader.until("create", "two") if "create" in each] == [
            "create one",
            "create two",
        ]


async def test_what_is_not_kept_is_told_as_a_gap(warden: WardenClient) -> None:
    reader = await Reader.of(warden, "/workspace")
    await warden.run(f"touch $(seq {MAX_EVENTS}); touch last")
    changes: list[FileChange] = []
    while not any(change.path == "last" for change in changes):
        changes += await reader.next()
    assert [change.kind for change in changes].count("gap") >= 1
    positions = [change.position for change in changes]
    assert positions == sorted(positions)


async def test_watches_are_bounded_and_ended(warden: WardenClient) -> None:
    first = await Reader.of(warden, "/workspace")
    for _ in range(MAX_WATCHES - 1):
        await warden.watch("/tmp")
    with pytest.raises(errors.Capacity):
        await warden.watch("/tmp")
    waiting = asyncio.create_task(first.next())
    await warden.ping()
    assert await warden.unwatch(first.watch_id) is True
    assert await warden.unwatch(first.watch_id) is False
    with pytest.raises(errors.NotFound):
        await waiting
    with pytest.raises(errors.NotFound):
        await first.next()
    await warden.watch("/tmp")


async def test_what_cannot_be_watched(warden: WardenClient) -> None:
    await warden.run("touch file; mkdir closed; chmod 0 closed")
    with pytest.raises(errors.InvalidPath, match="folder"):
        await warden.watch("file")
    with pytest.raises(errors.FileMissing):
        await warden.watch("nowhere")
    for path in ("closed", "/proc/1", "/proc/self/fd"):
        with pytest.raises(errors.InvalidPath):
            await warden.watch(path)
    watch = await warden.watch("/workspace")
    with pytest.raises(errors.InvalidRequest):
        await warden.watched(watch.watch_id, after=5, wait_s=0)


async def test_the_end_of_the_folder_itself(warden: WardenClient) -> None:
    await warden.run("mkdir d")
    reader = await Reader.of(warden, "d", recursive=True)
    await warden.run("mv d e; rmdir e")
    told = await reader.until("remove", ".")
    assert told[0] == "rename ."
