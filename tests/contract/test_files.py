"""Files go in and out through the warden, as the box's own user sees them."""

import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.warden.client import WardenBox, WardenClient

from .conftest import MakeBox

MIB = 1 << 20


async def chunks(data: bytes, size: int = 200_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def upload(warden: WardenClient, path: str, data: bytes, **options: Any) -> str:
    return (await warden.put(path, chunks(data), **options)).path


async def download(warden: WardenClient, path: str) -> bytes:
    async with warden.get(path) as file:
        return b"".join([chunk async for chunk in file])


async def test_what_is_moved_stays_inside(warden: WardenClient) -> None:
    """By links, into itself, and what is no file."""
    await warden.run("mkdir -p d/e; ln -s /etc out; ln -s d in; echo x > f; mkfifo p; ln -s f l")
    for path, to in (
        ("out/passwd", "f2"),
        ("f", "out/f"),
        ("f", "/etc/f"),
        ("d", "d/e/d"),
        ("d", "d/new/d"),
    ):
        with pytest.raises(errors.InvalidPath):
            await warden.rename(path, to)
    assert (await warden.rename("f", "in/g")).path == "/workspace/d/g"
    assert (await warden.rename("l", "l2")).type == "symlink"
    assert (await warden.rename("p", "p2")).type == "other"
    with pytest.raises(errors.InvalidPath):
        await warden.rename("p2", "x" * 5000)
    with pytest.raises(errors.InvalidPath):
        await warden.rename("p2", "d/e")
    assert (await warden.run("echo * d/*")).output == "d in l2 out p2 d/e d/g\n"


@pytest.mark.kernel
async def test_round_trip_with_checksums(
    warden: WardenClient, runtime_name: str, subtests: pytest.Subtests
) -> None:
    large = 20 * MIB if runtime_name.endswith("gvisor") else 100 * MIB  # Its system calls are slow.
    for size in (0, 1, 65536, large):
        with subtests.test(size=size):
            user = "user" if runtime_name == "e2b" else "sandboxuser"
            await round_trip(warden, size, user)


async def round_trip(warden: WardenClient, size: int, user: str) -> None:
    data = os.urandom(MIB) * (size // MIB) + os.urandom(size % MIB)
    digest = hashlib.sha256(data).hexdigest()
    uploaded = await warden.put("file.bin", chunks(data))
    assert (uploaded.path, uploaded.size) == ("/workspace/file.bin", size)
    inside = await warden.run("sha256sum < file.bin; find file.bin -printf '%u %m\\n'")
    assert inside.output == f"{digest}  -\n{user} 644\n"
    async with warden.get("file.bin", digest=True) as file:
        assert (file.about.size, file.about.sha256) == (size, digest)
        got = hashlib.sha256()
        async for chunk in file:
            got.update(chunk)
    assert got.hexdigest() == digest


NAMES = [
    "with space",
    "new\nline",
    "ünïcødé 文件",
    "-rf",
    "'quote\"",
    "$(id)",
    ".hidden",
    "a" * 255,
    "*",
]


async def test_names_of_every_kind(warden: WardenClient, subtests: pytest.Subtests) -> None:
    for number, name in enumerate(NAMES):
        with subtests.test(repr(name)):
            await upload(warden, name, b"content %d" % number)
            assert await download(warden, name) == b"content %d" % number
            listing = await warden.list("/workspace")
            assert {entry.name for entry in listing.entries} == set(NAMES[: number + 1])
            assert (await warden.stat(name)).path == f"/workspace/{name}"


async def test_folders_are_made_on_the_way(warden: WardenClient) -> None:
    assert await upload(warden, "a/b/c.txt", b"x") == "/workspace/a/b/c.txt"
    assert (await warden.run("cat a/b/c.txt")).output == "x"


@pytest.mark.kernel
async def test_every_writable_place_is_served(warden: WardenClient) -> None:
    for place in ("/tmp", "/home/sandboxuser", "/dev/shm"):
        await upload(warden, f"{place}/f", b"y")
        assert await download(warden, f"{place}/f") == b"y"


async def test_replacing_a_file_is_atomic_and_does_not_follow_links(warden: WardenClient) -> None:
    await warden.run("echo original > target; ln -s target link")
    await upload(warden, "link", b"new")
    result = await warden.run("cat target; [ -L link ] || cat link")
    assert result.output == "original\nnew"


async def test_mode_is_kept_to_permissions(warden: WardenClient) -> None:
    await upload(warden, "run.sh", b"#!/bin/sh\necho ran", mode=0o4755)
    assert (await warden.run("find run.sh -printf '%m\\n'; ./run.sh")).output == "755\nran\n"


@pytest.mark.kernel
async def test_a_folder_comes_as_a_tar(warden: WardenClient) -> None:
    await warden.run("mkdir -p d/e; echo 1 > d/f; echo 22 > d/e/g; ln -s /etc/passwd d/l")
    with tarfile.open(fileobj=io.BytesIO(await download(warden, "d"))) as archive:
        members = {member.name: member for member in archive}
        content = archive.extractfile("e/g")
        assert content is not None
        assert content.read() == b"22\n"
    assert sorted(members) == ["e", "e/g", "f", "l"]
    assert members["l"].issym()
    assert members["l"].linkname == "/etc/passwd"


async def test_listing(warden: WardenClient) -> None:
    await warden.run("mkdir -p d/sub; echo hello > d/file; ln -s file d/link; touch d/sub/deep")
    entries = {e.path: e for e in (await warden.list("d")).entries}
    assert {path: e.type for path, e in entries.items()} == {
        "/workspace/d/file": "file",
        "/workspace/d/link": "symlink",
        "/workspace/d/sub": "directory",
    }
    assert entries["/workspace/d/file"].size == 6
    deep = await warden.list("d", recursive=True)
    assert "/workspace/d/sub/deep" in [entry.path for entry in deep.entries]


async def test_a_long_listing_is_cut_and_told(warden: WardenClient) -> None:
    await warden.run("mkdir many; cd many; touch $(seq 3000)")
    listing = await warden.list("many", limit=1000)
    assert (len(listing.entries), listing.truncated) == (1000, True)
    whole = await warden.list("many", limit=10_000)
    assert (len(whole.entries), whole.truncated) == (3000, False)


async def test_names_that_are_not_text_do_not_break_a_listing(warden: WardenClient) -> None:
    await warden.run(r"mkdir odd; touch $'odd/\xff\xfe'")
    assert [entry.name for entry in (await warden.list("odd")).entries] == ["\ufffd\ufffd"]


# Refusals


WRITTEN_NOWHERE = [
    "../etc/passwd",
    "../../../../etc/x",
    "/etc/passwd",
    "/proc/1/environ",
    "/proc/self/mem",
    "/usr/bin/bash",
    "/workspace/../root/x",
    "/nowhere/x",
]
NO_PATHS = ["/workspace\0/x", "x" * 5000, "/" + "a/" * 2500, ""]


@pytest.mark.kernel
async def test_outside_the_writable_places_nothing_is_written(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    await upload(warden, "f", b"x")
    for path in WRITTEN_NOWHERE:
        with subtests.test(path):
            for call in (
                upload(warden, path, b"x"),
                warden.mkdir(path),
                warden.remove(path),
                warden.rename(path, "g"),
                warden.rename("f", path),
            ):
                with pytest.raises(errors.InvalidPath, match="/home/sandboxuser"):
                    await call
    for path in NO_PATHS:
        with subtests.test(repr(path[:40])):
            for reading in (download(warden, path), warden.list(path), warden.stat(path)):
                with pytest.raises(errors.InvalidPath):
                    await reading


async def test_what_the_user_can_read_is_read_anywhere(warden: WardenClient) -> None:
    names = (await warden.run("find / -mindepth 1 -maxdepth 1 -printf '%f\\n'")).output.split()
    assert [entry.name for entry in (await warden.list("/")).entries] == sorted(names)
    assert (await warden.stat("/")).path == "/"
    await warden.run("ln -s /etc/passwd p; ln -s / r")
    passwd = (await warden.run("cat /etc/passwd")).output.encode()
    for path in ("/etc/passwd", "../etc/passwd", "p", "r/etc/passwd", "/nowhere/../etc/passwd"):
        assert await download(warden, path) == passwd, path
    with pytest.raises(errors.FileMissing):
        await warden.stat("/etc/nothing")
    with pytest.raises(errors.InvalidPath, match="written"):
        await upload(warden, "r/tmp/../etc/x", b"")
    await upload(warden, "r/tmp/y", b"through a link, into a place")


async def test_files_whose_size_is_wrong_are_read_to_their_end(warden: WardenClient) -> None:
    for path in ("/proc/meminfo", "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"):
        inside = await warden.run(f"cat {path}")
        if inside.exit_code == 0:
            async with warden.get(path, digest=True) as file:
                data = b"".join([chunk async for chunk in file])
            assert file.about.size == len(data)
            assert data.split()[0] == inside.output.encode().split()[0]
    cpus = (await warden.run("grep -c ^processor /proc/cpuinfo")).output
    assert (await download(warden, "/proc/cpuinfo")).count(b"processor\t") == int(cpus)


async def test_links_inside_are_followed(warden: WardenClient) -> None:
    await warden.run("mkdir real; echo there > real/f; ln -s real short; ln -s real/f direct")
    assert await download(warden, "short/f") == b"there\n"
    assert await download(warden, "direct") == b"there\n"


async def test_a_link_that_loops(warden: WardenClient) -> None:
    await warden.run("ln -s a b; ln -s b a")
    with pytest.raises(errors.SandboxError) as caught:
        await download(warden, "a")
    assert caught.value.status in (404, 422)


@pytest.mark.kernel
async def test_a_swapped_link_is_never_written_through(warden: WardenClient) -> None:
    """A folder that keeps turning into a link to a folder that cannot be written."""
    await warden.run(
        "mkdir -p d; echo mine > d/hostname; mv d d1; ln -s /etc d2; "
        "(while :; do mv -T d1 d; mv -T d d1; mv -T d2 d; mv -T d d2; done) 2>/dev/null >&2 &"
    )
    for number in range(150):
        try:
            assert (await upload(warden, f"d/{number}", b"x")).startswith("/workspace/d")
        except (errors.InvalidPath, errors.FileMissing):
            continue


@pytest.mark.kernel
@pytest.mark.parametrize(
    "make", ["mkfifo odd", "python3 -c 'import socket; socket.socket(1).bind(\"odd\")'"]
)
async def test_what_is_not_a_file_is_refused_at_once(warden: WardenClient, make: str) -> None:
    await warden.run(make)
    with pytest.raises(errors.InvalidPath):
        await download(warden, "odd")


async def test_missing_files(warden: WardenClient) -> None:
    with pytest.raises(errors.FileMissing):
        await download(warden, "nowhere/nothing")
    with pytest.raises(errors.FileMissing):
        await warden.stat("nothing")
    with pytest.raises(errors.FileMissing):
        await warden.list("nothing")


async def test_a_folder_cannot_be_replaced_by_a_file(warden: WardenClient) -> None:
    await warden.run("mkdir folder")
    for path in ("folder", "folder/", "/workspace", "folder/..", "."):
        with pytest.raises(errors.InvalidPath):
            await upload(warden, path, b"x")


async def test_too_large_is_refused_and_leaves_nothing(warden: WardenClient) -> None:
    with pytest.raises(errors.FileTooLarge):
        await upload(warden, "big", b"x" * 1001, limit=1000)
    assert (await warden.run("find . -mindepth 1")).output == ""


@pytest.mark.kernel
async def test_an_upload_cut_off_leaves_nothing(box: WardenBox, warden: WardenClient) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 300_000
        raise RuntimeError("the client has gone")

    with pytest.raises(RuntimeError, match="gone"):
        await warden.put("whole", half())
    assert (await warden.run("find . -mindepth 1")).output == ""


@pytest.mark.kernel
async def test_a_full_disk_is_told(make_box: MakeBox) -> None:
    box = await make_box(limits=Limits(disk_bytes=32 * MIB))
    async with WardenClient(box) as warden:
        with pytest.raises(errors.DiskFull):
            await upload(warden, "big", bytes(64 * MIB))
        assert (await warden.run("find . -mindepth 1")).output == ""
        await upload(warden, "small", b"fits")


async def test_two_transfers_and_a_command_at_once(warden: WardenClient) -> None:
    import asyncio

    data = os.urandom(MIB) * 20
    await upload(warden, "a", data)
    got, _, result = await asyncio.gather(
        download(warden, "a"), upload(warden, "b", data), warden.run("echo meanwhile")
    )
    assert got == data
    assert result.output == "meanwhile\n"
    assert (await warden.run("cmp a b && echo same")).output == "same\n"


async def test_a_small_file_is_read_while_it_is_written(warden: WardenClient) -> None:
    """Again and again, as a file with the state of a program is."""
    await warden.start("for ((i = 0; ; i++)); do printf '%*s\\n' $((i % 30000)) x > state; done")
    await warden.run("until [ -s state ]; do sleep 0.01; done")
    for _ in range(100):
        async with warden.get("state", digest=True) as file:
            data = b"".join([chunk async for chunk in file])
        assert (file.about.size, file.about.sha256) == (len(data), hashlib.sha256(data).hexdigest())


async def test_a_file_that_is_still_being_received_is_seen_by_nobody(
    warden: WardenClient, runtime_name: str
) -> None:
    await warden.run("echo there > there")
    listed: list[str] = []
    seen: list[str] = []

    async def slowly() -> AsyncIterator[bytes]:
        yield b"first"
        # Its own request, which comes after the bytes that were sent.
        seen.append((await warden.run("find -mindepth 1 -printf '%f\\n'")).output)
        listed.extend(entry.name for entry in (await warden.list("/workspace")).entries)
        assert "upload" not in str(tar_names(await download(warden, "/workspace")))

    await warden.put("whole", slowly())
    assert listed == ["there"]
    if not runtime_name.endswith("gvisor"):  # Its files always have a name.
        assert seen == ["there\n"]
    assert [entry.name for entry in (await warden.list("/workspace")).entries] == ["there", "whole"]


def tar_names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()
