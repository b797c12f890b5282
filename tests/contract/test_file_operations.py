"""stat, mkdir, remove, moves, listings to a depth and watches, through every way to reach a
Sandboxes."""

import asyncio

import pytest

from sandbox_sdk import AsyncSandboxClient
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    FileChange,
    FileChangesRequest,
    FileWatchTarget,
    RenameRequest,
    WatchFilesRequest,
)
from sandbox_sdk.protocol.operations import RENAME, UNWATCH, WATCH, WATCH_EVENTS
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .stand import Place
from .test_sandboxes import chunks, thread


@pytest.mark.seam
async def test_looking_at_a_file(sandboxes: Sandboxes) -> None:
    await sandboxes.upload_file(thread("t"), "dir/a.txt", chunks(b"one"))
    entry = await sandboxes.stat(thread("t"), "dir/a.txt")
    assert (entry.name, entry.path, entry.type) == ("a.txt", "/workspace/dir/a.txt", "file")
    assert (entry.size, entry.mode, entry.owner, entry.target) == (3, "0644", "sandboxuser", None)
    assert (await sandboxes.stat(thread("t"), "dir")).type == "directory"
    with pytest.raises(errors.FileMissing):
        await sandboxes.stat(thread("t"), "nothing")
    with pytest.raises(errors.FileMissing):
        await sandboxes.stat(thread("new"), "nothing")


async def test_metadata_of_a_file(sandboxes: Sandboxes) -> None:
    about = {"author": "ada", "note": 'a "b" \\'}
    await sandboxes.upload_file(thread("t"), "a.txt", chunks(b"one"), metadata=about)
    assert (await sandboxes.stat(thread("t"), "a.txt")).metadata == about
    listed = (await sandboxes.list_files(thread("t"))).entries
    assert [each.metadata for each in listed] == [about]
    moved = RenameRequest(thread_id="t", path="a.txt", to="b.txt")
    assert (await sandboxes.call(RENAME, moved)).metadata == about
    await sandboxes.upload_file(thread("t"), "b.txt", chunks(b"two"))
    assert (await sandboxes.stat(thread("t"), "b.txt")).metadata is None
    for wrong in ({"a": "x" * 5000}, {"": "x"}, {"a": "ä"}, {"a\n": "x"}, {"a" * 247: "x"}):
        with pytest.raises(errors.InvalidRequest):
            await sandboxes.upload_file(thread("t"), "c", chunks(b""), metadata=wrong)


async def test_making_and_removing_folders(sandboxes: Sandboxes) -> None:
    made = await sandboxes.mkdir(thread("t"), "a/b")
    assert (made.created, made.entry.path, made.entry.type) == (
        True, "/workspace/a/b", "directory",
    )  # fmt: skip
    assert (await sandboxes.mkdir(thread("t"), "a/b")).created is False
    await sandboxes.upload_file(thread("t"), "a/b/file", chunks(b"x"))
    for path in ("a/b/file", "a/b/file/below"):
        with pytest.raises(errors.InvalidPath):
            await sandboxes.mkdir(thread("t"), path)
    with pytest.raises(errors.InvalidPath):
        await sandboxes.remove(thread("t"), "a", recursive=False)
    await sandboxes.remove(thread("t"), "a")
    assert (await sandboxes.list_files(thread("t"))).entries == []
    with pytest.raises(errors.FileMissing):
        await sandboxes.remove(thread("t"), "a")
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.remove(thread("nobody"), "a")
    for path in ("/workspace", "/tmp", "/etc/passwd"):
        with pytest.raises(errors.InvalidPath):
            await sandboxes.remove(thread("t"), path)


@pytest.mark.seam
async def test_a_move_between_disks(sandboxes: Sandboxes) -> None:
    await sandboxes.upload_file(thread("t"), "d/a", chunks(b"one"))
    request = RenameRequest(thread_id="t", path="d", to="/tmp/new/d")
    assert (await sandboxes.call(RENAME, request)).path == "/tmp/new/d"
    assert (await sandboxes.stat(thread("t"), "/tmp/new/d/a")).size == 3
    with pytest.raises(errors.FileMissing):
        await sandboxes.stat(thread("t"), "d")


async def test_a_listing_to_a_depth_and_of_the_root(sandboxes: Sandboxes) -> None:
    await sandboxes.upload_file(thread("t"), "a/b/c", chunks(b"x"))
    found = await sandboxes.list_files(thread("t"), depth=2)
    assert [entry.path for entry in found.entries] == ["/workspace/a", "/workspace/a/b"]
    root = await sandboxes.list_files(thread("t"), path="/")
    assert {"/workspace", "/tmp", "/home"} <= {entry.path for entry in root.entries}
    with pytest.raises(errors.InvalidPath, match="/home/sandboxuser"):
        await sandboxes.upload_file(thread("t"), "/etc/x", chunks(b"x"))


@pytest.mark.seam
async def test_a_watch(sandboxes: Sandboxes) -> None:
    await sandboxes.mkdir(thread("t"), "src")
    watch = await sandboxes.call(
        WATCH, WatchFilesRequest(thread_id="t", path="src", recursive=True)
    )
    assert watch.path == "/workspace/src"
    await sandboxes.upload_file(thread("t"), "src/sub/a.py", chunks(b"x"))
    told: list[FileChange] = []
    position = watch.position
    while not any(each.kind == "write" for each in told):
        request = FileChangesRequest(
            thread_id="t", watch_id=watch.watch_id, after=position, wait=30
        )
        found = await sandboxes.call(WATCH_EVENTS, request)
        told, position = told + found.events, found.position
    assert [(each.kind, each.path, each.type) for each in told] == [
        ("create", "sub", "directory"),
        ("create", "sub/a.py", "file"),
        ("chmod", "sub/a.py", None),
        ("write", "sub/a.py", "file"),
    ]
    target = FileWatchTarget(session_id=watch.session_id, watch_id=watch.watch_id)
    assert (await sandboxes.call(UNWATCH, target)).ended is True
    assert (await sandboxes.call(UNWATCH, target)).ended is False
    with pytest.raises(errors.NotFound):
        await sandboxes.call(WATCH_EVENTS, request)
    with pytest.raises(errors.FileMissing):
        await sandboxes.call(WATCH, WatchFilesRequest(thread_id="t", path="nowhere"))


async def test_being_watched_is_no_use(sandboxes: Sandboxes) -> None:
    watch = await sandboxes.call(WATCH, WatchFilesRequest(thread_id="t"))
    before = (await sandboxes.session(thread("t"))).last_used_at
    request = FileChangesRequest(thread_id="t", watch_id=watch.watch_id, after=0, wait=0.1)
    assert (await sandboxes.call(WATCH_EVENTS, request)).events == []
    after = (await sandboxes.session(thread("t"))).last_used_at
    assert abs((after - before).total_seconds()) < 0.1


async def test_a_client_iterates_until_the_sandbox_is_lost(
    sandboxes: Sandboxes, stand: Place
) -> None:
    async with AsyncSandboxClient("t", backend=sandboxes) as sandbox:
        changes = sandbox.watch_files()
        first = asyncio.create_task(anext(changes))
        while not first.done():
            await sandbox.write_text("note.txt", "x")
            await asyncio.sleep(0.01)
        assert (await first).path == "note.txt"
        await stand.lose_box("t")
        with pytest.raises((errors.SessionLost, errors.SessionNotFound)):
            async for _ in changes:
                pass
