"""Whatever a box has in its folders: its warden lives on, answers are bounded, and what is left out
is told."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import FileEntry
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_server.service.answers import file_entry

from .conftest import MakeBox

MIB = 1 << 20
NOTICE = "LEFT-OUT-BY-SANDBOX.txt"


async def python(warden: WardenClient, code: str) -> str:
    result = await warden.run("python3 -", stdin=code.encode())
    assert result.exit_code == 0, result.output
    return result.output


async def download(warden: WardenClient, path: str, **options: Any) -> bytes:
    async with warden.get(path, **options) as file:
        return b"".join([chunk async for chunk in file])


async def unpack(warden: WardenClient, path: str) -> dict[str, bytes]:
    """Names in the tar of a folder, with the content of the files."""
    with tarfile.open(fileobj=io.BytesIO(await download(warden, path))) as archive:
        found = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        read = {name: file.read() for name, file in found.items() if file is not None}
        return {member.name: b"" for member in archive} | read


# Links


async def test_a_chain_of_links_is_followed_as_far_as_the_kernel_would(
    warden: WardenClient,
) -> None:
    await python(
        warden,
        """
import os
open("end", "w").write("here")
os.symlink("end", "l0")
for i in range(1500):
    os.symlink("l%d" % i, "l%d" % (i + 1))
""",
    )
    assert await download(warden, "l39") == b"here"
    for path in ("l40", "l1500", "l1500/x"):
        for call in (download(warden, path), warden.list(path)):
            with pytest.raises(errors.InvalidPath):
                await call
        with pytest.raises(errors.InvalidPath):
            await warden.put(f"{path}/file", chunks(b"x"))
    assert (await warden.stat("l1500")).type == "symlink"
    assert (await warden.run("echo ok")).output == "ok\n"


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_links_of_every_shape(warden: WardenClient) -> None:
    await python(
        warden,
        """
import os
os.makedirs("d/e")
open("d/f", "w").write("in d")
os.symlink("/workspace/d", "absolute")
os.symlink("../d/./e/../f", "d/winding")
os.symlink("d/" * 1 + "e", "to_e")
os.symlink("/tmp/../workspace/d/f", "around")
os.symlink("x/" * 2047, "long")
os.symlink("./" * 2047, "dots")
os.symlink("d/../" * 819, "backs")
os.symlink("self/self", "self")
os.symlink("nowhere", "dangling")
os.symlink("../" * 1000 + "workspace/d/f", "up")
""",
    )
    for path in ("absolute/f", "d/winding", "to_e/../f", "around", "up", "dots/d/f"):
        assert await download(warden, path) == b"in d", path
    for path in ("self", "self/x", "long", "dangling", "dangling/x"):
        with pytest.raises((errors.InvalidPath, errors.FileMissing)):
            await download(warden, path)
    with pytest.raises(errors.InvalidPath):
        await download(warden, "backs/" * 10 + "../../etc/passwd")
    assert (await warden.put("dangling/made/file", chunks(b"x"))).path == (
        "/workspace/nowhere/made/file"
    )
    with pytest.raises(errors.InvalidPath):
        await warden.put("new/folder/../../../etc/x", chunks(b"x"))
    assert (await warden.run("ls -d new")).exit_code != 0, "nothing is made on the way out"


async def test_a_folder_that_may_only_be_passed_through(warden: WardenClient) -> None:
    await warden.run("mkdir -p p/q; echo inside > p/q/f; chmod 111 p")
    assert await download(warden, "p/q/f") == b"inside\n"
    assert (await warden.stat("p/q/f")).size == 7
    with pytest.raises(errors.InvalidPath):
        await warden.list("p")
    await warden.run("chmod 000 p")
    with pytest.raises(errors.InvalidPath):
        await download(warden, "p/q/f")
    await warden.run("chmod 755 p")


# Listings


async def names(warden: WardenClient, path: str, **options: Any) -> tuple[list[str], bool]:
    listing = await warden.list(path, **options)
    return [entry.name for entry in listing.entries], listing.truncated


async def test_the_first_names_of_a_large_folder(warden: WardenClient) -> None:
    await warden.run("mkdir many; cd many; seq -f %05g 4500 | shuf | xargs touch")
    everything, truncated = await names(warden, "many", limit=100_000)
    assert (everything, truncated) == ([f"{n:05}" for n in range(1, 4501)], False)
    assert await names(warden, "many", limit=10) == (everything[:10], True)
    assert await names(warden, "many", limit=4499) == (everything[:-1], True)
    assert await names(warden, "many", limit=4500) == (everything, False)
    assert list(await unpack(warden, "many")) == everything


async def test_a_listing_of_long_paths_is_bounded(warden: WardenClient) -> None:
    """6,000 entries at the end of a path of 4,000 characters would be 24 MB."""
    await python(
        warden,
        """
import os
for _ in range(19):
    os.mkdir("d" * 200); os.chdir("d" * 200)
for i in range(6000):
    open("%04d" % i, "w").close()
""",
    )
    listing = await warden.list("/workspace", recursive=True, limit=100_000)
    size = sum(len(entry.path) + len(entry.name) for entry in listing.entries)
    assert listing.truncated
    assert 4 * MIB < size <= 8 * MIB
    assert (await warden.list("d" * 200, recursive=False)).truncated is False


async def test_what_is_too_deep_or_too_long_is_left_out_and_told(warden: WardenClient) -> None:
    await python(
        warden,
        """
import os
os.makedirs("deep"); os.chdir("deep")
for _ in range(260):
    os.mkdir("d"); os.chdir("d")
os.chdir("/workspace"); os.makedirs("long"); os.chdir("long")
for _ in range(20):
    os.mkdir("x" * 250); os.chdir("x" * 250)
open("leaf", "w").write("far away")
""",
    )
    for path in ("deep", "long"):
        listing = await warden.list(path, recursive=True, limit=100_000)
        assert listing.truncated, path
        assert all(len(entry.path) <= 4096 for entry in listing.entries)
    members = await unpack(warden, "deep")
    assert b"nested" in members[NOTICE]
    assert list((await unpack(warden, "long")).values())[-1] == b"far away", "a tar has no limit"
    for path in ("x" * 4097, "x/" * 3000, "/workspace/" + "y" * 9000):
        with pytest.raises(errors.InvalidPath):
            await warden.list(path)


async def test_what_may_not_be_looked_into_is_told(warden: WardenClient) -> None:
    await warden.run("mkdir -p d/closed/in d/blind; touch d/blind/f; chmod 0 d/closed;"
                     " chmod 444 d/blind")  # fmt: skip
    found, truncated = await names(warden, "d", recursive=True)
    assert (found, truncated) == (["blind", "closed"], True)
    assert (await names(warden, "d"))[1] is False
    await warden.run("chmod 755 d/closed d/blind")
    assert (await names(warden, "d", recursive=True))[1] is False


async def test_a_command_runs_while_a_large_folder_is_listed(warden: WardenClient) -> None:
    await warden.run("for d in {1..5}; do mkdir $d; seq -f $d/%04g 1000 | xargs touch; done")
    listing = asyncio.create_task(warden.list("/workspace", recursive=True, limit=100_000))
    order = []
    listing.add_done_callback(lambda _: order.append("listed"))
    while not listing.done():
        await warden.ping()
        order.append("answered")
    assert order.count("answered") > 3, "the warden answers in between"
    assert len((await listing).entries) == 5005


async def test_times_beyond_the_calendar(warden: WardenClient, subtests: pytest.Subtests) -> None:
    for when in ("@253402300800", "@99999999999999", "@-99999999999"):
        with subtests.test(when):
            place = f"/dev/shm/{when}"
            await warden.run(f"mkdir {place}; touch -d {when} {place}/f")
            (entry,) = (await warden.list(place)).entries
            assert isinstance(entry, FileEntry)
            assert 1 <= file_entry(entry).modified_at.year <= 9999
            assert (await warden.stat(f"{place}/f")).modified_at == entry.modified_at
            assert list(await unpack(warden, place)) == ["f"]


# Downloads


async def test_what_cannot_be_read_is_left_out_of_a_tar_and_told(warden: WardenClient) -> None:
    await warden.run(
        "mkdir -p d/closed d/open; echo a > d/a; echo secret > d/b; chmod 0 d/b d/closed;"
        " echo z > d/open/z; mkfifo d/pipe"
    )
    members = await unpack(warden, "d")
    assert members.keys() == {"a", "closed", "open", "open/z", NOTICE}
    assert list(members)[-1] == NOTICE
    assert (members["a"], members["open/z"]) == (b"a\n", b"z\n")
    told = members[NOTICE].decode()
    for line in ("b: Permission denied", "closed: Permission denied", "pipe: "):
        assert f"\n{line}" in told
    await warden.run("chmod 755 d/closed; chmod 644 d/b; rm d/pipe")
    assert NOTICE not in await unpack(warden, "d")


async def changed_meanwhile(warden: WardenClient, path: str, command: str) -> int:
    """How much of a download arrives while a command does something to it."""
    got = 0
    async with warden.get(path, digest=True) as file:
        async for chunk in file:
            if not got:
                await warden.run(command)
            got += len(chunk)
            if got == file.about.size:
                return got
    return got


async def test_a_file_rewritten_while_it_is_sent_never_looks_whole(warden: WardenClient) -> None:
    await warden.run("head -c 8M /dev/zero > f")
    rewrite = "printf x | dd of=f bs=1 seek=8000000 conv=notrunc status=none"
    with pytest.raises(errors.RuntimeUnavailable, match="changed"):
        await changed_meanwhile(warden, "f", rewrite)


async def test_a_file_that_grows_or_shrinks_meanwhile(warden: WardenClient) -> None:
    await warden.run("head -c 8M /dev/zero > f")
    assert await changed_meanwhile(warden, "f", "echo more >> f") == 8 * MIB
    with pytest.raises(errors.RuntimeUnavailable, match="truncated"):
        await changed_meanwhile(warden, "f", "truncate -s 5M f")


async def test_a_file_that_shrinks_inside_a_tar_is_filled_up_and_told(
    warden: WardenClient,
) -> None:
    await warden.run("mkdir d; head -c 8M /dev/zero > d/f; echo after > d/g")
    data = b""
    async with warden.get("d") as folder:
        async for chunk in folder:
            if not data:
                await warden.run("truncate -s 5M d/f")
            data += chunk
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        sizes = {member.name: member.size for member in archive}
    assert (sizes["f"], sizes["g"]) == (8 * MIB, 6)
    assert b"\nf: truncated" in (data[data.index(NOTICE.encode()) :])


@pytest.mark.kernel
async def test_a_file_cannot_be_larger_than_the_disk(make_box: MakeBox) -> None:
    box = await make_box(limits=Limits(disk_bytes=32 * MIB, tmp_bytes=16 * MIB))
    async with WardenClient(box) as warden:
        await warden.run("truncate -s 32M sparse")
        assert len(await download(warden, "sparse", digest=True)) == 32 * MIB
        result = await warden.run("truncate -s 1T huge; echo $?; ls huge && stat -c %s huge")
        assert result.output.splitlines()[-1] != str(1 << 40)
        loud = await warden.run("head -c 1 /dev/zero | dd of=far bs=1 seek=1T status=none")
        assert "File size limit exceeded" in loud.output or "File too large" in loud.output
        assert loud.exit_code != 0
        assert (await warden.run("echo ok")).output == "ok\n"


async def test_a_tar_of_many_sparse_files_has_an_end(make_box: MakeBox) -> None:
    box = await make_box(limits=Limits(disk_bytes=16 * MIB, tmp_bytes=16 * MIB))
    async with WardenClient(box) as warden:
        await warden.run(
            "mkdir d; for i in {100..120}; do truncate -s 12M d/$i; done; echo x > d/x"
        )
        members = await unpack(warden, "d")
        assert members["x"] == b"x\n"
        assert sum(map(len, members.values())) < 65 * MIB
        assert b"\n119: " in members[NOTICE]
