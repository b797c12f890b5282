"""Metadata of files, kept by the warden as extended attributes."""

import shlex

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.warden.client import WardenClient

from .test_files import chunks

PLACES = ("/workspace", "/home/sandboxuser", "/tmp", "/dev/shm")
ABOUT = {"author": "ada", "of": "a b"}


async def set_by_hand(warden: WardenClient, path: str, name: str, value: bytes) -> bool:
    """Whether a process of the box can do it: what metadata needs of a file system."""
    script = f"import os; os.setxattr({path!r}, {name!r}, {value!r})"
    return (await warden.run(f"touch {path}; python3 -c {shlex.quote(script)}")).exit_code == 0


@pytest.mark.parametrize("place", PLACES)
async def test_it_is_kept_or_refused(warden: WardenClient, place: str) -> None:
    """Where the file system has no extended attributes, nothing is stored, and it is said."""
    path = f"{place}/file"
    if await set_by_hand(warden, f"{place}/other", "user.e2b.x", b"y"):
        await warden.put(path, chunks(b"one"), metadata=ABOUT)
        found = await warden.stat(path)
        assert (found.metadata, found.size) == (ABOUT, 3)
        return
    with pytest.raises(errors.InvalidPath, match="no extended attributes"):
        await warden.put(path, chunks(b"one"), metadata=ABOUT)
    await warden.put(path, chunks(b"one"))
    listed = (await warden.list(place)).entries
    assert not any(each.name.startswith(".") for each in listed if "upload" in each.name)


async def test_the_workspace_keeps_it(warden: WardenClient) -> None:
    if not await set_by_hand(warden, "/workspace/f", "user.e2b.x", b"y"):
        return  # gVisor.
    await warden.put("d/a", chunks(b"x"), metadata=ABOUT)
    await warden.put("d/b", chunks(b"x"))
    listed = {each.name: each.metadata for each in (await warden.list("d")).entries}
    assert listed == {"a": ABOUT, "b": None}
    assert (await warden.rename("d/a", "d/b", replace=True)).metadata == ABOUT
    await warden.put("d/b", chunks(b"y"), metadata={"new": "1"})
    assert (await warden.stat("d/b")).metadata == {"new": "1"}


async def test_what_a_box_sets_is_bounded(warden: WardenClient) -> None:
    """What is no text is left out, and what is too much."""
    if not await set_by_hand(warden, "/workspace/f", "user.other", b"z"):
        return  # gVisor.
    for name, value in (("text", b"t"), ("bytes", b"\xff"), ("zlarge", b"x" * 3900)):
        assert await set_by_hand(warden, "/workspace/f", f"user.e2b.{name}", value)
    found = (await warden.stat("f")).metadata
    assert found is not None
    assert found.pop("zlarge", "x" * 3900) == "x" * 3900
    assert found == {"text": "t"}
