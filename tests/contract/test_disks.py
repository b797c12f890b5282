"""Checkpoints as copies of whole disks: what comes over, and when something is amiss."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    CreateSessionRequest,
    ExecuteRequest,
    RestoreRequest,
    Target,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.runtime.base import BoxSpec, DiskImage
from sandbox_server.runtime.disk_pool import DiskPool, open_pool
from tests.run import run_owner

from .conftest import RUNTIMES
from .stand import Stand, lone_standing, make_runtime, open_stand
from .test_trees import DIGEST, ODD, WRITER

CHECK = "diff <(seq $(wc -l < a)) a && diff <(seq $(wc -l < b)) b && wc -l < a && wc -l < b"


COPIED = [name for name in RUNTIMES if name != "gvisor"]
"""gVisor writes to its disk late, so files are packed there."""


@pytest.fixture(params=COPIED)
async def stand(
    request: pytest.FixtureRequest, state_dir: Path, disk_pool: DiskPool
) -> AsyncIterator[Stand]:
    async with (
        make_runtime(str(request.param), state_dir, disks=disk_pool.folder) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing, images=disk_pool.images / "test") as opened,
    ):
        yield opened


async def run(sandboxes: Sandboxes, thread: str, command: str, **options: Any) -> str:
    request = ExecuteRequest(thread_id=thread, command=command, **options)
    result = await sandboxes.execute(request)
    assert result.exit_code in (0, None), result.output
    return result.output


async def begin(sandboxes: Sandboxes, thread: str, checkpoint_id: str, **options: Any) -> None:
    await sandboxes.create_session(
        CreateSessionRequest(thread_id=thread, checkpoint_id=checkpoint_id, **options)
    )


@pytest.mark.kernel
async def test_everything_comes_over(stand: Stand) -> None:
    await run(stand.sandboxes, "a", ODD)
    before = await run(stand.sandboxes, "a", f"( {DIGEST % '/workspace'} )")
    made = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="a"))
    await run(stand.sandboxes, "a", "rm -rf /workspace/*")
    await begin(stand.sandboxes, "b", made.checkpoint_id)
    assert await run(stand.sandboxes, "b", f"( {DIGEST % '/workspace'} )") == before
    assert await run(stand.sandboxes, "b", "cat ~/.config/rc /tmp/t") == "rc\nt\n"
    await run(stand.sandboxes, "b", "chmod 600 unreadable; echo more >> large; rm -r a; touch new")
    # What began with a copy can be copied, and the first copy is as it was.
    again = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="b"))
    await stand.sandboxes.cleanup(Target(thread_id="b"))
    await begin(stand.sandboxes, "c", again.checkpoint_id)
    assert await run(stand.sandboxes, "c", "cat unreadable; ls -d a new 2>&1 || true") == (
        "secret\nls: cannot access 'a': No such file or directory\nnew\n"
    )
    await stand.sandboxes.restore(RestoreRequest(thread_id="c", checkpoint_id=made.checkpoint_id))
    assert await run(stand.sandboxes, "c", f"( {DIGEST % '/workspace'} )") == before


async def test_a_box_that_writes_all_the_while(stand: Stand) -> None:
    await stand.sandboxes.execute(
        ExecuteRequest(thread_id="w", command=WRITER, background=True, timeout=600)
    )
    for number in range(3):
        await asyncio.sleep(0.2)
        made = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="w"))
        assert any("bash" in each for each in made.running)
        await begin(stand.sandboxes, f"w{number}", made.checkpoint_id)
        first, second = map(int, (await run(stand.sandboxes, f"w{number}", CHECK)).split())
        assert first - second in (0, 1)
        await stand.sandboxes.cleanup(Target(thread_id=f"w{number}"))


async def test_a_disk_of_another_size(stand: Stand) -> None:
    await run(stand.sandboxes, "small", "mkdir d; echo x > d/f; chmod 700 d; cd d; y=1")
    made = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="small"))
    await begin(stand.sandboxes, "large", made.checkpoint_id, limits={"disk": "2g"})
    assert await run(stand.sandboxes, "large", "pwd; cat f; echo $y") == "/workspace/d\nx\n1\n"
    room = await run(stand.sandboxes, "large", "df -Pk /workspace | awk 'END { print $2 }'")
    assert int(room) > 1_500_000
    assert len(stand.worker.table.sessions()) == 2, "the box in between is no session"


async def test_an_upload_meanwhile_is_not_in_it(stand: Stand) -> None:
    await run(stand.sandboxes, "up", "head -c 30M /dev/urandom > ~/large")
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"1" * 100_000
        begun.set()
        await go_on.wait()
        yield b"2" * 100_000

    upload = asyncio.create_task(
        stand.sandboxes.upload_file(Target(thread_id="up"), "slow.bin", slow())
    )
    await begun.wait()
    made = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="up"))
    go_on.set()
    assert (await upload).size == 200_000
    await begin(stand.sandboxes, "copy", made.checkpoint_id)
    assert await run(stand.sandboxes, "copy", "find . -mindepth 1") == ""
    assert await run(stand.sandboxes, "up", "find . -mindepth 1") == "./slow.bin\n"


async def test_a_copy_that_is_gone(stand: Stand, disk_pool: DiskPool) -> None:
    await run(stand.sandboxes, "t", "echo 1 > a")
    made = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="t"))
    (image,) = (disk_pool.images / "test").rglob(f"{made.checkpoint_id}*.img")
    image.unlink()
    session = await stand.sandboxes.session(Target(thread_id="t"))
    with pytest.raises(errors.CheckpointDamaged, match="the copy of its disk is gone"):
        await stand.sandboxes.restore(
            RestoreRequest(thread_id="t", checkpoint_id=made.checkpoint_id)
        )
    assert (await stand.sandboxes.session(Target(thread_id="t"))).session_id == session.session_id
    assert await run(stand.sandboxes, "t", "cat a") == "1\n"


async def test_nothing_is_left_of_a_deleted_one(stand: Stand, disk_pool: DiskPool) -> None:
    await run(stand.sandboxes, "t", "echo 1 > a")
    made = await stand.sandboxes.checkpoint(CheckpointRequest(thread_id="t"))
    await stand.sandboxes.delete_checkpoint(made.checkpoint_id)
    assert not [*(disk_pool.images / "test").rglob(f"{made.checkpoint_id}*")]


@pytest.mark.parametrize("name", COPIED)
async def test_the_next_server_finds_the_disks_of_boxes_that_run(
    name: str, tmp_path: Path, disk_pool: DiskPool
) -> None:
    assert not disk_pool.no_copies
    spec = BoxSpec(owner=run_owner("disks"), deadman_s=300)
    with open_pool(tmp_path) as pool:
        async with make_runtime(name, tmp_path, disks=pool.folder) as runtime:
            first = await runtime.create(spec)
            async with first.agent() as agent:
                await agent.run("echo kept > a")
    with open_pool(tmp_path) as pool, open_pool(tmp_path) as same:
        image = pool.folder / "image"
        async with make_runtime(name, tmp_path, disks=pool.folder) as runtime:
            (found,) = await runtime.boxes(spec.owner)
            assert found.disk_owner is not None
            await found.copy_disk(image)
            await found.destroy()
            assert (same.folder / "image").exists()
            disk = DiskImage(path=image, owner=found.disk_owner)
            copy = await runtime.create(replace(spec, disk=disk))
            async with copy.agent() as agent:
                assert (await agent.run("cat a")).output == "kept\n"
            await copy.destroy()
    async with asyncio.timeout(10):
        while str(tmp_path / "pool.xfs") in _backing_files():
            await asyncio.sleep(0.05)


def _backing_files() -> str:
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(path.read_text())
    return "".join(found)


async def test_the_same_call_several_times_at_once(stand: Stand) -> None:
    await run(stand.sandboxes, "t", "echo 1 > a")
    wanted = CheckpointRequest(thread_id="t", idempotency_key="one")
    results = await asyncio.gather(
        *(stand.sandboxes.checkpoint(wanted) for _ in range(4)), return_exceptions=True
    )
    assert [result for result in results if isinstance(result, BaseException)] == []
    (made,) = (await stand.sandboxes.checkpoints(thread_id="t")).checkpoints
    await begin(stand.sandboxes, "copy", made.checkpoint_id)
    assert await run(stand.sandboxes, "copy", "cat a") == "1\n"


@pytest.mark.kernel
@pytest.mark.parametrize("name", RUNTIMES)
async def test_no_history_where_disks_cannot_be_copied(name: str, state_dir: Path) -> None:
    async with (
        make_runtime(name, state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing) as opened,
    ):
        request = CreateSessionRequest(thread_id="h", history=True)
        with pytest.raises(errors.InvalidRequest, match="history is not to be had here: disks"):
            await opened.sandboxes.create_session(request)
        assert (await opened.sandboxes.sessions()).sessions == []


@pytest.mark.parametrize("name", [name for name in RUNTIMES if name == "gvisor"])
async def test_no_history_on_gvisor(name: str, state_dir: Path, disk_pool: DiskPool) -> None:
    async with (
        make_runtime(name, state_dir, disks=disk_pool.folder) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing, images=disk_pool.images / "test") as opened,
    ):
        request = CreateSessionRequest(thread_id="h", history=True)
        with pytest.raises(errors.InvalidRequest, match="disk of a box of docker cannot be copied"):
            await opened.sandboxes.create_session(request)
        assert (await opened.sandboxes.sessions()).sessions == []
