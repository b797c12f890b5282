"""Volumes, through every way to reach a sandbox."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    CreateSessionRequest,
    ExecuteRequest,
    ForkRequest,
    RenameRequest,
    RestoreRequest,
    Session,
    Target,
    checked,
)
from sandbox_sdk.protocol.operations import RENAME
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import ByteChunks

from .stand import VOLUME_QUOTA, VOLUME_SIZE, Place, Stand, Way

pytestmark = [pytest.mark.usefixtures("sandboxes"), pytest.mark.bash]
MIB = 1 << 20
DATA = {"name": "data", "path": "/workspace/data"}
READ = {**DATA, "mode": "ro"}


async def make(sandboxes: Sandboxes, thread: str, *volumes: Any, **options: Any) -> Session:
    request = checked(CreateSessionRequest, thread_id=thread, volumes=list(volumes), **options)
    return await sandboxes.create_session(request)


async def run(sandboxes: Sandboxes, thread: str, command: str) -> str:
    request = ExecuteRequest(thread_id=thread, command=command, timeout=60)
    return (await sandboxes.execute(request)).output


async def end(sandboxes: Sandboxes, *threads: str) -> None:
    for thread in threads:
        await sandboxes.cleanup(Target(thread_id=thread))


@pytest.mark.seam
@pytest.mark.checkpoints
async def test_a_volume_outlives_its_session(sandboxes: Sandboxes) -> None:
    made = await make(sandboxes, "first", DATA)
    assert [dict(each) for each in made.volumes] == [{**DATA, "source": None, "mode": "rw"}]
    said = await run(sandboxes, "first", "echo kept > data/a; mkdir data/d; [ -O data ]; echo $?")
    assert said == "0\n"
    summed = await run(sandboxes, "first", "head -c 3M /dev/urandom > data/d/r; md5sum < data/d/r")
    info = await sandboxes.session(Target(thread_id="first"))
    assert info.volumes == made.volumes
    (volume,) = (await sandboxes.volumes()).volumes
    assert (volume.name, volume.size) == ("data", VOLUME_SIZE)
    assert 0 < volume.used < VOLUME_SIZE
    assert [dict(use) for use in volume.mounted_by] == [{"thread_id": "first", "mode": "rw"}]
    ended = await sandboxes.cleanup(Target(thread_id="first"))
    assert ended.volumes == made.volumes
    (volume,) = (await sandboxes.volumes()).volumes
    assert volume.mounted_by == []

    await make(sandboxes, "second", {"name": "data", "path": "elsewhere"})
    found = "cd elsewhere; cat a; echo more >> a; [ -O a ] && [ -O d ]; echo $?; echo *"
    assert await run(sandboxes, "second", found) == "kept\n0\na d\n"
    assert await run(sandboxes, "second", "md5sum < d/r") == summed
    await end(sandboxes, "second")
    await sandboxes.delete_volume("data")
    assert (await sandboxes.volumes()).volumes == []
    await make(sandboxes, "third", DATA)
    assert await run(sandboxes, "third", "echo data/*") == "data/*\n"


async def test_files_of_a_volume_are_served(sandboxes: Sandboxes) -> None:
    await make(sandboxes, "files", DATA)
    target = Target(thread_id="files")
    await sandboxes.upload_file(target, "data/in/a.txt", ByteChunks(b"here"))
    assert await run(sandboxes, "files", "cat data/in/a.txt; stat -c %U data/in") == (
        "heresandboxuser\n"
    )
    listed = await sandboxes.list_files(target, path="data", recursive=True)
    assert [entry.path for entry in listed.entries] == [
        "/workspace/data/in",
        "/workspace/data/in/a.txt",
    ]
    top = await sandboxes.list_files(target)
    assert "/workspace/data" in [entry.path for entry in top.entries]
    async with sandboxes.download_file(target, "/workspace/data/in/../in/a.txt") as download:
        assert b"".join([chunk async for chunk in download.chunks]) == b"here"
    with pytest.raises(errors.SandboxError):  # On another disk than the rest, and in use.
        await sandboxes.upload_file(target, "data", ByteChunks(b"no"))
    with pytest.raises(errors.InvalidPath, match="box itself"):
        await sandboxes.remove(target, "data")
    moved = RenameRequest(thread_id="files", path="data/in", to="out")
    assert (await sandboxes.call(RENAME, moved)).path == "/workspace/out"
    await run(sandboxes, "files", "mv data gone; rm -rf data; rmdir data")
    assert await run(sandboxes, "files", "ls -d data") == "data\n"


@pytest.mark.checkpoints
async def test_one_writes_or_many_read(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.VolumeNotFound, match="no volume 'data'"):
        await make(sandboxes, "reader-1", READ)
    await make(sandboxes, "writer", DATA)
    await run(sandboxes, "writer", "echo written > data/a")
    for wanted in (DATA, READ):
        with pytest.raises(errors.Conflict, match="'data' is in use: thread 'writer' has it, rw"):
            await make(sandboxes, "other", wanted)
    with pytest.raises(errors.Conflict, match="thread 'writer'"):
        await sandboxes.delete_volume("data")
    again = await make(sandboxes, "writer", READ)
    assert (again.status, again.not_applied) == ("existing", ["volumes"])
    assert (await make(sandboxes, "writer", DATA)).not_applied == []
    await end(sandboxes, "writer")

    await asyncio.gather(*(make(sandboxes, f"reader-{n}", READ) for n in (1, 2)))
    for thread in ("reader-1", "reader-2"):
        assert await run(sandboxes, thread, "cat data/a") == "written\n"
        said = await run(sandboxes, thread, "echo no > data/b; rm -f data/a; mkdir data/d")
        assert said.count("Read-only file system") == 3
        with pytest.raises(errors.SandboxError):
            await sandboxes.upload_file(Target(thread_id=thread), "data/c", ByteChunks(b"no"))
    (volume,) = (await sandboxes.volumes()).volumes
    assert [(use.thread_id, use.mode) for use in volume.mounted_by] == [
        ("reader-1", "ro"),
        ("reader-2", "ro"),
    ]
    with pytest.raises(errors.Conflict, match="has it, ro"):
        await make(sandboxes, "writer", DATA)
    await end(sandboxes, "reader-1")
    with pytest.raises(errors.Conflict, match=r"(thread 'reader-2'|another thread) has it, ro"):
        await make(sandboxes, "writer", DATA)
    await end(sandboxes, "reader-2")
    await make(sandboxes, "writer", DATA)
    assert await run(sandboxes, "writer", "cat data/a") == "written\n"


async def test_quotas(sandboxes: Sandboxes) -> None:
    small = await sandboxes.create_volume("small", size="16m")
    assert (small.name, small.size, small.mounted_by) == ("small", 16 * MIB, [])
    with pytest.raises(errors.Conflict, match="there is a volume 'small' already"):
        await sandboxes.create_volume("small")
    await make(sandboxes, "fills", {"name": "small", "path": "small"})
    filled = await run(sandboxes, "fills", "head -c 20M /dev/zero > small/f; echo $?")
    assert "No space left on device" in filled
    assert await run(sandboxes, "fills", "rm small/f; echo fits > small/g; cat small/g") == "fits\n"
    # /workspace does not count it.
    await run(sandboxes, "fills", "head -c 8M /dev/urandom > small/f")
    usage = (await sandboxes.session(Target(thread_id="fills"))).usage
    assert usage.disk_bytes is not None
    assert usage.disk_bytes < 4 * MIB

    listed = await sandboxes.volumes()
    assert listed.quota == VOLUME_QUOTA
    with pytest.raises(errors.DiskFull, match="SANDBOX_VOLUME_QUOTA of the server is 128 MiB"):
        await sandboxes.create_volume("large", size=VOLUME_QUOTA - 15 * MIB)
    await sandboxes.create_volume("large", size=VOLUME_QUOTA - 16 * MIB)
    with pytest.raises(errors.DiskFull, match="delete one, or ask for less"):
        await make(sandboxes, "more", {"name": "more", "path": "more"})
    assert [each.name for each in (await sandboxes.volumes()).volumes] == ["large", "small"]
    with pytest.raises(errors.InvalidRequest, match="16 MiB or more"):
        await sandboxes.create_volume("tiny", size=4096)


@pytest.mark.wire
async def test_a_file_may_be_larger_than_the_disk_of_the_box(sandboxes: Sandboxes) -> None:
    await sandboxes.create_volume("large", size=96 * MIB)
    session = await make(
        sandboxes, "big", {"name": "large", "path": "large"}, limits={"disk": "16m"}
    )
    assert session.limits.disk_bytes == 16 * MIB
    assert await run(sandboxes, "big", "head -c 40M /dev/zero > large/f; stat -c %s large/f") == (
        f"{40 * MIB}\n"
    )


@pytest.mark.one_way
async def test_what_cannot_be(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    paths = [
        *("/workspace", "", ".", "..", "/", "/etc", "/usr", "/home/sandboxuser", "/tmp/x", "/mnt"),
        *("/workspace/../etc", "/workspace/a/../b", "a/b", "/workspace//", "/proc/self", "//etc"),
        *("/workspace/a\n", "/workspace/a\0", "/workspace/" + 256 * "a", "/run/sandbox"),
    ]
    for path in paths:
        with subtests.test(path=path), pytest.raises(errors.InvalidRequest):
            await make(sandboxes, "bad", {"name": "data", "path": path})
    for name in ("", ".", "..", "../x", "a/b", "-a", ".hidden", "a\n", "a b", "a\0", "é", "a" * 65):
        with subtests.test(name=name):
            with pytest.raises(errors.InvalidRequest):
                await make(sandboxes, "bad", {"name": name, "path": "data"})
            with pytest.raises(errors.InvalidRequest):
                await sandboxes.create_volume(name)
            with pytest.raises(errors.InvalidRequest):
                await sandboxes.delete_volume(name)
    wrong: list[list[dict[str, Any]]] = [
        [{"name": "a", "path": "a", "mode": "write"}],
        [{"name": "a", "path": "a"}, {"name": "a", "path": "b"}],
        [{"name": "a", "path": "a"}, {"name": "b", "path": "/workspace/a"}],
        [{"path": "a"}],
        [{"name": "a"}],
        [{"name": f"a{n}", "path": f"a{n}"} for n in range(9)],
    ]
    for volumes in wrong:
        with subtests.test(volumes=volumes), pytest.raises(errors.InvalidRequest):
            await make(sandboxes, "bad", *volumes)
    for unknown in ("never", "lock", "img"):
        with pytest.raises(errors.VolumeNotFound, match=f"no volume '{unknown}'"):
            await sandboxes.delete_volume(unknown)
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(Target(thread_id="bad"))
    assert (await sandboxes.volumes()).volumes == []


async def test_a_lost_session_comes_back_with_its_volumes(
    sandboxes: Sandboxes, stand: Place
) -> None:
    await make(sandboxes, "lost", DATA)
    await run(sandboxes, "lost", "echo kept > data/a; echo gone > b")
    await stand.lose_box("lost")
    assert await run(sandboxes, "lost", "cat data/a; ls") == "kept\ndata\n"
    assert (await sandboxes.session(Target(thread_id="lost"))).generation == 2
    await stand.lose_box("lost")
    await make(sandboxes, "next", DATA)
    assert await run(sandboxes, "next", "cat data/a") == "kept\n"


@pytest.mark.checkpoints
async def test_checkpoints_leave_volumes_alone(sandboxes: Sandboxes) -> None:
    await make(sandboxes, "trunk", DATA)
    await run(sandboxes, "trunk", "echo one > a; echo one > data/a; echo -n x > data/large;"
              "truncate -s 3M data/large; cd data")  # fmt: skip
    taken = await sandboxes.checkpoint(CheckpointRequest(thread_id="trunk"))
    assert taken.left_out == []
    await run(sandboxes, "trunk", "echo two > ../a; echo two > a; rm large")
    restored = await sandboxes.restore(
        RestoreRequest(thread_id="trunk", checkpoint_id=taken.checkpoint_id)
    )
    assert [each.name for each in restored.volumes] == ["data"]
    assert await run(sandboxes, "trunk", "pwd; cat ../a a; ls; touch b") == (
        "/workspace/data\none\ntwo\na\n"
    )
    forked = await sandboxes.fork(ForkRequest(checkpoint_id=taken.checkpoint_id, into=["twig"]))
    assert forked.sessions[0].volumes == []
    assert await run(sandboxes, "twig", "pwd; cat ../a; ls -A; echo own > b; cat b") == (
        "/workspace/data\none\nown\n"
    )
    await end(sandboxes, "trunk")
    # Where a volume is, files of the checkpoint are not.
    hidden = await sandboxes.checkpoint(CheckpointRequest(thread_id="twig"))
    await end(sandboxes, "twig")
    session = await make(sandboxes, "both", DATA, checkpoint_id=hidden.checkpoint_id)
    assert (session.status, [each.name for each in session.volumes]) == ("created", ["data"])
    assert await run(sandboxes, "both", "cat ../a a; cat b; ls") == "one\ntwo\na\nb\n"


@pytest.mark.checkpoints
async def test_a_link_in_the_place_of_a_volume(sandboxes: Sandboxes, way: Way) -> None:
    await run(sandboxes, "links", "ln -s /etc data")
    taken = await sandboxes.checkpoint(CheckpointRequest(thread_id="links"))
    await end(sandboxes, "links")
    making = make(sandboxes, "linked", DATA, checkpoint_id=taken.checkpoint_id)
    if copies_disks(way):
        with pytest.raises(errors.InvalidRequest, match="no volume can be at /workspace/data"):
            await making
        return
    await making
    seen = "[ -L data ] || touch data/a; [ -e data/a ] && [ ! -e /etc/a ]; echo $?"
    assert await run(sandboxes, "linked", seen) == "0\n"


def copies_disks(way: Way) -> bool:
    """Whether checkpoints are copies of whole disks. Where a server has all its settings, it makes
    a pool for them."""
    return way.store == "disks" or way.name == "processes" or way.name.endswith("local")


async def test_at_the_same_time(sandboxes: Sandboxes) -> None:
    tried = await asyncio.gather(
        *(make(sandboxes, f"thread-{n}", DATA) for n in range(3)), return_exceptions=True
    )
    made = [each for each in tried if isinstance(each, Session)]
    others = [each for each in tried if not isinstance(each, Session)]
    assert len(made) == 1
    assert [type(each) for each in others] == [errors.Conflict] * 2
    assert len((await sandboxes.volumes()).volumes) == 1
    await end(sandboxes, made[0].thread_id)


@pytest.mark.wire
@pytest.mark.inside
async def test_of_another_tenant(sandboxes: Sandboxes, stand: Place) -> None:
    assert isinstance(stand, Stand)
    other = stand.service.of("other")
    await make(sandboxes, "mine", DATA)
    await run(sandboxes, "mine", "echo secret > data/a")
    assert (await other.volumes()).volumes == []
    with pytest.raises(errors.VolumeNotFound) as foreign:
        await other.delete_volume("data")
    with pytest.raises(errors.VolumeNotFound) as never:
        await other.delete_volume("never")
    assert foreign.value.message == never.value.message.replace("never", "data", 1)
    await make(other, "theirs", DATA)
    assert await run(other, "theirs", "ls -A data") == ""
    await end(other, "theirs")
    await other.delete_volume("data")
    assert await run(sandboxes, "mine", "cat data/a") == "secret\n"


@pytest.mark.wire
@pytest.mark.inside
async def test_a_failed_start_holds_no_volume(
    sandboxes: Sandboxes, stand: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(stand, Stand)
    await make(sandboxes, "first", DATA)
    await end(sandboxes, "first")

    async def fails(*_args: Any, **_options: Any) -> Any:
        raise errors.RuntimeUnavailable("no box today")

    maker = stand.worker.table._maker
    with monkeypatch.context() as patched:
        patched.setattr(maker._source, "claim", fails)
        with pytest.raises(errors.RuntimeUnavailable, match="no box today"):
            await stand.service.of("local").create_session(
                checked(CreateSessionRequest, thread_id="x", volumes=[DATA])
            )
        making = asyncio.create_task(make(stand.sandboxes, "cancelled", DATA))
        await asyncio.sleep(0)
        making.cancel()
        with pytest.raises((asyncio.CancelledError, errors.RuntimeUnavailable)):
            await making
    await make(sandboxes, "second", DATA)


@pytest.fixture
def folders(stand: Place) -> Path:
    """Folders of the server's machine that sessions may have."""
    assert isinstance(stand, Stand)
    for name in ("ro/in", "rw", "secret"):
        (stand.folders / name).mkdir(parents=True)
    (stand.folders / "ro" / "a").write_text("model\n")
    (stand.folders / "ro" / "in" / "b").write_text("inner\n")
    (stand.folders / "secret" / "key").write_text("secret\n")
    (stand.folders / "ro" / "out").symlink_to(stand.folders / "secret")
    (stand.folders / "ro" / "back").symlink_to("in")
    os.chown(stand.folders / "rw", 1000, 1234)
    return stand.folders


@pytest.mark.wire
@pytest.mark.inside
async def test_folders_of_the_server(sandboxes: Sandboxes, folders: Path) -> None:
    reads = {"source": f"{folders}/ro", "path": "models"}
    made = await make(sandboxes, "reads", reads, {"source": f"{folders}/ro/back", "path": "in"})
    assert [(each.source, each.mode) for each in made.volumes] == [
        (f"{folders}/ro", "ro"),
        (f"{folders}/ro/back", "ro"),
    ]
    assert (await make(sandboxes, "reads", reads)).not_applied == ["volumes"]
    seen = await run(sandboxes, "reads", "cat models/a in/b; cat models/out/key; touch models/c")
    assert seen.startswith("model\ninner\n")
    assert "secret\n" not in seen
    assert "Read-only file system" in seen
    assert sorted(path.name for path in (folders / "ro").iterdir()) == ["a", "back", "in", "out"]

    writes = {"source": f"{folders}/rw", "path": "shared", "mode": "rw"}
    await make(sandboxes, "writes", writes)
    assert await run(sandboxes, "writes", "cd shared; mkdir d; echo made > d/a") == ""
    found = (folders / "rw" / "d" / "a").stat()
    assert (folders / "rw" / "d" / "a").read_text() == "made\n"
    assert found.st_uid == 1000
    taken = await sandboxes.checkpoint(CheckpointRequest(thread_id="writes"))
    await run(sandboxes, "writes", "echo newer > d/a")
    await sandboxes.restore(RestoreRequest(thread_id="writes", checkpoint_id=taken.checkpoint_id))
    assert await run(sandboxes, "writes", "cat d/a") == "newer\n"
    assert (await sandboxes.volumes()).volumes == []


@pytest.mark.wire
@pytest.mark.inside
async def test_folders_that_are_not_allowed(
    sandboxes: Sandboxes, folders: Path, subtests: pytest.Subtests
) -> None:
    (folders / "rw" / "inner").mkdir()
    sources = [
        *("/", "/etc", "/proc/1/root", "/proc/self/cwd", str(folders), f"{folders}/secret"),
        *(f"{folders}/ro/../secret", f"{folders}/ro/out", f"{folders}/rough", f"{folders}/none"),
        *(f"{folders}/ro/../..", f"{folders}/rw/inner", f"{folders}/rw/../ro/out/"),
    ]
    for source in sources:
        with subtests.test(source), pytest.raises(errors.Forbidden, match="SANDBOX_BIND_FOLDERS"):
            await make(sandboxes, "bad", {"source": source, "path": "x"})
    for source, mode in ((f"{folders}/ro", "rw"), (f"{folders}/ro/in", "rw")):
        with pytest.raises(errors.Forbidden, match="may have rw"):
            await make(sandboxes, "bad", {"source": source, "path": "x", "mode": mode})
    for source in ("relative", "", "/a\0b", "./x", "~/x"):
        with subtests.test(source), pytest.raises(errors.InvalidRequest):
            await make(sandboxes, "bad", {"source": source, "path": "x"})
    for source in (f"{folders}/ro/a", f"{folders}/ro/none"):
        with pytest.raises(errors.InvalidRequest, match="is no folder of the server's machine"):
            await make(sandboxes, "bad", {"source": source, "path": "x"})
    with pytest.raises(errors.InvalidRequest, match="exactly one of name and source"):
        await make(sandboxes, "bad", {**DATA, "source": f"{folders}/ro"})
    os.chown(folders / "rw", 0, 0)
    with pytest.raises(errors.InvalidRequest, match="belongs to root"):
        await make(sandboxes, "bad", {"source": f"{folders}/rw", "path": "x", "mode": "rw"})
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(Target(thread_id="bad"))
