"""Looking at files, making folders, removing and moving them, as a box has them."""

import asyncio

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import FileEntry
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.warden.client import WardenClient

from .conftest import MakeBox
from .test_files import download, upload

MIB = 1 << 20
TREE = "find {} -printf '%P %y %m %l %TY%Tm%Td%TH%TM\\n' | sort | grep -v '^ d'"


async def test_an_entry_tells_owner_group_and_target(warden: WardenClient) -> None:
    await warden.run("mkdir d; echo hi > d/f; chmod 640 d/f; ln -s f d/l; ln -s nowhere d/x")
    entries = {entry.name: entry for entry in (await warden.list("d")).entries}
    told = await warden.run("find d/f -printf '%u %g\\n'")
    assert f"{entries['f'].owner} {entries['f'].group}\n" == told.output
    assert (entries["f"].target, entries["f"].mode) == (None, "0640")
    assert (entries["l"].target, entries["x"].target) == ("f", "nowhere")
    link, file = await warden.stat("d/l"), await warden.stat("d/l", follow=True)
    assert (link.type, link.target) == ("symlink", "f")
    assert link.leads_to is not None
    assert (link.leads_to.path, link.leads_to.type) == (entries["f"].path, "file")
    assert (link.leads_to.mode, entries["x"].leads_to) == ("0640", None)
    assert (file.path, file.type, file.size) == ("/workspace/d/f", "file", 3)
    with pytest.raises(errors.FileMissing):
        await warden.stat("d/x", follow=True)
    assert (await warden.stat("/etc/passwd")).owner in ("root", "0", "65534", "nobody")


async def test_a_listing_to_a_depth(warden: WardenClient) -> None:
    await warden.run("mkdir -p a/b/c; touch 1 a/2 a/b/3 a/b/c/4")

    async def paths(*, depth: int) -> list[str]:
        listing = await warden.list("/workspace", depth=depth)
        assert not listing.truncated
        return [entry.path.removeprefix("/workspace/") for entry in listing.entries]

    assert await paths(depth=1) == ["1", "a"]
    assert await paths(depth=2) == ["1", "a", "a/2", "a/b"]
    assert await paths(depth=3) == ["1", "a", "a/2", "a/b", "a/b/3", "a/b/c"]
    assert len(await paths(depth=256)) == 7


async def test_folders_are_made_once(warden: WardenClient) -> None:
    made = await warden.mkdir("a/b/c")
    assert (made.created, made.entry.path, made.entry.type) == (
        True, "/workspace/a/b/c", "directory",
    )  # fmt: skip
    assert (await warden.mkdir("a/b/c")).created is False
    assert (await warden.mkdir("/workspace")).created is False
    await warden.run("touch file; ln -s a link")
    assert (await warden.mkdir("link/d")).entry.path == "/workspace/a/d"
    for path in ("file", "file/below", "a/../file/x"):
        with pytest.raises(errors.InvalidPath, match="file"):
            await warden.mkdir(path)


async def test_what_is_removed_is_gone_and_nothing_else(warden: WardenClient) -> None:
    await warden.run(
        "mkdir -p d/e/f keep closed/in; echo x > d/e/f/g; echo kept > keep/k; ln -s ../keep d/out;"
        " ln -s keep link; touch one closed/in/x; chmod 555 closed/in; chmod 0 closed; mkdir empty"
    )
    for path in ("one", "link", "d", "closed"):
        await warden.remove(path)
    with pytest.raises(errors.InvalidPath, match="recursive"):
        await warden.remove("keep", recursive=False)
    await warden.remove("empty", recursive=False)
    assert (await warden.run("find . -mindepth 1; cat keep/k")).output == "./keep\n./keep/k\nkept\n"
    with pytest.raises(errors.FileMissing):
        await warden.remove("one")
    for place in ("/workspace", "/home/sandboxuser", "/tmp", "/dev/shm", ".", "/workspace/keep/.."):
        with pytest.raises(errors.InvalidPath, match="box itself"):
            await warden.remove(place)


async def test_a_large_folder_is_removed_while_others_are_served(warden: WardenClient) -> None:
    await warden.run("for d in {1..20}; do mkdir -p big/$d; (cd big/$d; touch {1..300}); done")
    removing = asyncio.create_task(warden.remove("big"))
    answered = 0
    while not removing.done():
        await warden.ping()
        answered += 1
    await removing
    assert answered > 3
    assert (await warden.run("find . -mindepth 1")).output == ""


async def test_a_deep_folder_is_removed(warden: WardenClient) -> None:
    await warden.run(
        "python3 - <<'end'\nimport os\nfor _ in range(600): os.mkdir('d'); os.chdir('d')\nend"
    )
    await warden.remove("d")
    assert (await warden.run("find . -mindepth 1")).output == ""


@pytest.mark.kernel
async def test_a_move_to_another_disk_keeps_what_files_are(warden: WardenClient) -> None:
    await warden.run(
        "mkdir -p d/sub/empty; echo one > d/one; ln d/one d/same; ln -s one d/link; ln -s no d/x;"
        " mkfifo d/pipe; chmod 4750 d/one; head -c 300000 /dev/urandom > d/sub/large;"
        " truncate -s 3M d/sub/hole; touch -d '2001-02-03 04:05' d/one d/sub/{large,empty} d/sub;"
        " chmod 555 d/sub; touch -h -d '2002-02-02 02:02' d/link; sha256sum < d/sub/large"
    )
    before = (await warden.run(TREE.format("d") + "; sha256sum < d/sub/large")).output
    moved = await warden.rename("d", "/tmp/new/d2")
    assert (moved.path, moved.type) == ("/tmp/new/d2", "directory")
    after = await warden.run(
        TREE.format("/tmp/new/d2") + "; sha256sum < /tmp/new/d2/sub/large;"
        " [ /tmp/new/d2/one -ef /tmp/new/d2/same ] && find . /tmp/new -mindepth 1 -maxdepth 1"
    )
    assert after.output == before + "/tmp/new/d2\n"
    back = await warden.rename("/tmp/new/d2/link", "link")
    assert (back.type, back.target) == ("symlink", "one")
    assert (await warden.rename("/tmp/new/d2", "/home/sandboxuser/d3")).path.endswith("d3")


async def test_a_move_to_another_disk_replaces_a_file_if_told(warden: WardenClient) -> None:
    await warden.run("echo new > f; echo old > /tmp/f; mkdir /tmp/folder")
    with pytest.raises(errors.InvalidPath, match="replace"):
        await warden.rename("f", "/tmp/f")
    with pytest.raises(errors.InvalidPath, match="folder"):
        await warden.rename("f", "/tmp/folder", replace=True)
    assert await download(warden, "/tmp/f") == b"old\n"
    await warden.rename("f", "/tmp/f", replace=True)
    assert (await warden.run("cat /tmp/f; find . -mindepth 1")).output == "new\n"


async def test_a_move_that_fails_leaves_the_source_and_no_rest(make_box: MakeBox) -> None:
    box = await make_box(limits=Limits(disk_bytes=64 * MIB, tmp_bytes=8 * MIB))
    async with WardenClient(box) as warden:
        await warden.run("mkdir d; echo a > d/a; head -c 20M /dev/zero | tr '\\0' x > d/big")
        with pytest.raises(errors.DiskFull):
            await warden.rename("d", "/tmp/d")
        await warden.run("mkdir odd; echo a > odd/a; mkdir odd/closed; chmod 0 odd/closed")
        with pytest.raises(errors.InvalidPath):
            await warden.rename("odd", "/tmp/odd")
        await warden.run("chmod 755 odd/closed")
        left = await warden.run("find . -mindepth 1 | sort; find /tmp -name '.*' -o -name 'd*'")
        assert left.output == "./d\n./d/a\n./d/big\n./odd\n./odd/a\n./odd/closed\n"


async def test_a_move_goes_on_without_its_caller(warden: WardenClient) -> None:
    await upload(warden, "big", b"x" * (20 * MIB))
    moving = asyncio.create_task(warden.rename("big", "/tmp/big"))
    while not moving.done() and not await _begun(warden):
        pass
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    while (await warden.run("find . -mindepth 1")).output:
        pass
    assert (await warden.stat("/tmp/big")).size == 20 * MIB


async def _begun(warden: WardenClient) -> bool:
    return ".upload-" in (await warden.run("find /tmp")).output


async def test_a_warden_of_an_earlier_version_is_not_asked(warden: WardenClient) -> None:
    assert warden.about is not None
    warden.about = warden.about.model_copy(update={"abilities": ["pty", "tree", "tunnel"]})
    for call in (
        warden.mkdir("d"),
        warden.remove("d"),
        warden.list("/", depth=2),
        warden.stat("/", follow=True),
        warden.watch("/workspace"),
    ):
        with pytest.raises(errors.InvalidRequest, match="earlier server; end the session"):
            await call
    assert (await warden.stat("/workspace")).type == "directory"
    assert FileEntry.model_validate(
        {"name": "a", "path": "/a", "type": "file", "size": 1, "mode": "0644", "modified_at": 1.0}
    ).target is None  # fmt: skip
