"""The file system through e2b's SDK: what there is, and what changes."""

import asyncio
from functools import partial
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    FileNotFoundException,
    InvalidArgumentException,
    SandboxException,
    SandboxNotRunningException,
)

from tests.e2b.servers import Blocking, Served
from tests.e2b.waiting import eventually


def test_what_is_there(box: Any) -> None:
    box.files.write("folder/a.txt", "12345")
    assert box.files.exists("folder/a.txt")
    assert box.files.exists("folder")
    assert not box.files.exists("folder/b.txt")
    info = box.files.get_info("folder/a.txt")
    assert (info.name, info.type.value, info.size) == ("a.txt", "file", 5)
    assert (info.mode & 0o777, info.permissions) == (0o644, "-rw-r--r--")
    assert info.owner == box.commands.run("whoami").stdout.strip()
    assert box.files.get_info("folder").type.value == "dir"
    with pytest.raises(FileNotFoundException):
        box.files.get_info("folder/b.txt")


def test_links(box: Any) -> None:
    """A link has the type of what it leads to, and its own where it leads nowhere."""
    box.commands.run(
        "mkdir at; cd at; echo x > a.txt; chmod 600 a.txt; ln -s a.txt link; ln -s link twice;"
        " ln -s /tmp folder; ln -s missing nowhere; ln -s round round"
    )
    real = box.files.get_info("at/a.txt").path
    found = {each.name: each for each in box.files.list("at")}
    for name, type_, target in [
        ("link", "file", real),
        ("twice", "file", real),
        ("folder", "dir", "/tmp"),
        ("nowhere", "symlink", f"{real.removesuffix('a.txt')}missing"),
        ("round", "symlink", f"{real.removesuffix('a.txt')}round"),
    ]:
        for info in (box.files.get_info(f"at/{name}"), found[name]):
            assert (info.type and info.type.value, info.symlink_target) == (type_, target)
    assert (found["link"].mode, found["link"].permissions) == (0o600, "Lrwxrwxrwx")
    assert found["a.txt"].symlink_target is None
    assert box.files.read("at/twice") == "x\n"


def test_lists(box: Any) -> None:
    box.commands.run("mkdir -p top/a/b; touch top/1 top/a/2 top/a/b/3")
    names = {each.name for each in box.files.list("top")}
    assert names == {"1", "a"}
    assert [each.name for each in box.files.list("top", depth=2)] == ["1", "a", "2", "b"]
    box.commands.run("mkdir top/c; touch top/c/4")
    assert [each.name for each in box.files.list("top", depth=2)] == ["1", "a", "2", "b", "c", "4"]
    with pytest.raises(FileNotFoundException):
        box.files.list("missing")
    with pytest.raises(InvalidArgumentException):
        box.files.list("top/1")


def test_folders(box: Any) -> None:
    assert box.files.make_dir("a/b/c")
    assert box.files.make_dir("a/b/c") is False
    box.files.write("file", "")
    with pytest.raises(InvalidArgumentException):
        box.files.make_dir("file")


def test_renames(box: Any) -> None:
    box.files.write("old", "1")
    box.files.write("there", "2")
    assert box.files.rename("old", "new/name").name == "name"
    assert box.files.read("new/name") == "1"
    assert not box.files.exists("old")
    box.files.rename("new/name", "there")
    assert box.files.read("there") == "1"
    box.files.rename("there", "/tmp/elsewhere")
    assert box.files.read("/tmp/elsewhere") == "1"
    with pytest.raises(FileNotFoundException):
        box.files.rename("old", "new")


def test_removes(box: Any) -> None:
    box.files.write("folder/a/b", "1")
    box.files.remove("folder")
    assert not box.files.exists("folder")
    box.files.remove("folder")


def test_events_are_asked_for(box: Any) -> None:
    if isinstance(box, Blocking):
        return  # It has events come by themselves, see below.
    box.files.make_dir("seen")
    watch = box.files.watch_dir("seen", recursive=True, include_entry=True)
    seen: dict[tuple[str, str], Any] = {}

    def has_seen(kind: str, name: str) -> bool:
        for event in watch.get_new_events():
            seen[event.type.value, event.name] = event.entry
        return (kind, name) in seen

    # One by one: what is in a new folder is seen from when it is watched, too.
    for command, name in [
        ("mkdir seen/sub", "sub"),
        ("echo 1 > seen/sub/file", "sub/file"),
        ("mv seen/sub/file seen/moved", "moved"),
    ]:
        box.commands.run(command)
        eventually(partial(has_seen, "create", name))
    assert ("rename", "sub/file") in seen
    assert seen["create", "moved"].size == 2
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()
    with pytest.raises(FileNotFoundException):
        box.files.watch_dir("missing")


def test_events_of_an_upload(box: Any) -> None:
    """As at e2b, where the owner of a new file is set before it is written."""
    if isinstance(box, Blocking):
        return
    box.files.make_dir("seen")
    watch = box.files.watch_dir("seen")
    for wanted in (["create", "chmod", "write"], ["write"]):
        box.files.write("seen/file", "text")
        events = watch.get_new_events()
        assert [(each.type.value, each.name) for each in events] == [
            (kind, "file") for kind in wanted
        ]


def test_a_watch_of_a_sandbox_that_is_killed(box: Any, served: Served) -> None:
    async def watched() -> Exception | None:
        sandbox = await AsyncSandbox.connect(box.sandbox_id, **served.options())
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        await sandbox.files.watch_dir(".", on_event=lambda _: None, on_exit=ended.set_result)
        await sandbox.kill()
        async with asyncio.timeout(60):
            return await ended

    error = asyncio.run(watched())
    assert isinstance(error, SandboxNotRunningException)
    assert "killed or reached its end of life" in str(error)


def test_events_come_by_themselves(box: Any, served: Served) -> None:
    box.files.make_dir("seen")

    async def watched() -> list[tuple[str, str]]:
        sandbox = await AsyncSandbox.connect(box.sandbox_id, **served.options())
        seen: list[tuple[str, str]] = []
        written = asyncio.Event()

        def see(event: Any) -> None:
            seen.append((event.type.value, event.name))
            if event.name == "last":
                written.set()

        handle = await sandbox.files.watch_dir("seen", on_event=see)
        await sandbox.commands.run("touch seen/first; rm seen/first; touch seen/last")
        async with asyncio.timeout(60):
            await written.wait()
        await handle.stop()
        return seen

    found = asyncio.run(watched())
    assert next(each for each in found if each[1] == "first") == ("create", "first")
    assert ("remove", "first") in found
