"""Boxes that are forked from a zygote: like those that bubblewrap starts, and independent of it."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.bubblewrap.bare import BareBox
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.bubblewrap.runtime import BubblewrapBox
from sandbox_server.runtime.bubblewrap.state import Record
from sandbox_server.runtime.bubblewrap.zygote import Zygote
from tests.contract.conftest import RUNTIMES, state_dir
from tests.run import run_owner

__all__ = ["state_dir"]

pytestmark = pytest.mark.skipif(
    "bubblewrap" not in RUNTIMES or os.geteuid() != 0, reason="no bubblewrap here, or not root"
)
SPEC = BoxSpec(owner=run_owner("zygote"), deadman_s=300)


@pytest.fixture
async def runtime(state_dir: Path) -> AsyncIterator[BubblewrapRuntime]:
    made = BubblewrapRuntime(state_dir=state_dir)
    async with made:
        yield made


async def output(box: BubblewrapBox, command: str) -> str:
    async with box.agent() as agent:
        return (await agent.run(command)).stdout


async def make(runtime: BubblewrapRuntime) -> BubblewrapBox:
    box = await runtime.create(SPEC)
    assert isinstance(box, BubblewrapBox)
    return box


def keeper_of(box: BubblewrapBox) -> Process:
    record = Record.read(box._folder)
    assert record is not None
    return record.keeper


LOOK = """
id; hostname; env | sort | grep -vE 'PWD|COMMAND_ID'; umask; ulimit -a
grep -E 'Cap|NoNew|Seccomp|Groups|Uid|Sig[BI]' /proc/self/status
grep -E 'Cap|NoNew|Seccomp|Groups|Uid' /proc/1/status
cut -d' ' -f2-4 /proc/self/mounts | sed 's/,uid=[0-9]*,gid=[0-9]*//' | grep -E '^/(usr|etc|work|home|tmp|dev/shm|run)'
ls /dev /etc /proc | grep -vE '^[0-9]+$'
for p in /etc/x /usr/x /dev/x /proc/sys/x /run/x /x; do touch $p 2>&1; done
echo 1 2>&1 > /proc/sys/vm/overcommit_memory; unshare -U true 2>&1; cat /sys/x 2>&1
"""  # noqa: E501


async def test_a_forked_box_is_like_one_of_bubblewraps(runtime: BubblewrapRuntime) -> None:
    forked = await make(runtime)
    assert runtime._forked
    assert runtime._zygote is not None
    zygote, runtime._zygote = runtime._zygote, None
    started = await make(runtime)
    runtime._zygote = zygote
    try:
        assert len(keeper_of(forked).children()) == len(keeper_of(started).children()) == 1
        assert await output(forked, LOOK) == await output(started, LOOK)
    finally:
        await forked.destroy()
        await started.destroy()


async def test_boxes_share_no_secret_and_no_descriptor(runtime: BubblewrapRuntime) -> None:
    boxes = [await make(runtime) for _ in range(2)]
    try:
        keys = [
            await output(box, "declare -f | grep -o '#[0-9a-f]\\{16\\}' | head -1") for box in boxes
        ]
        assert all(len(key.strip()) == 17 for key in keys)
        assert keys[0] != keys[1]
        for box in boxes:
            (warden,) = keeper_of(box).children()
            targets = [os.readlink(fd) for fd in Path(f"/proc/{warden.pid}/fd").iterdir()]
            assert not [each for each in targets if each.startswith(("/proc", "/tmp", "/work"))]
            words = Path(f"/proc/{warden.pid}/cmdline").read_bytes()
            assert str(runtime._state.path).encode() not in words
    finally:
        for box in boxes:
            await box.destroy()


async def test_boxes_outlive_the_zygote_and_the_next_has_a_new_one(
    runtime: BubblewrapRuntime,
) -> None:
    first = await make(runtime)
    assert runtime._zygote is not None
    assert runtime._zygote._process is not None
    runtime._zygote._process.send_signal(signal.SIGKILL)
    runtime._zygote._process.wait()
    second = await make(runtime)
    try:
        for box in (first, second):
            assert await output(box, "echo $$") != ""
    finally:
        for box in (first, second):
            keeper = keeper_of(box)
            await box.destroy()
            assert not keeper.alive()
            assert not box._folder.exists()


async def spare_of(runtime: BubblewrapRuntime) -> BareBox:
    """The bare box for the next start, once it has a PID 1."""
    assert runtime._spare._making is not None
    bare = await runtime._spare._making
    assert bare is not None
    ready, _, _ = await asyncio.to_thread(select.select, [bare.channel], [], [], 10)
    assert ready
    while not record_in(bare.folder).keeper.children():
        await asyncio.sleep(0.01)
    return bare


def record_in(folder: Path) -> Record:
    record = Record.read(folder)
    assert record is not None
    return record


def assert_gone(folder: Path, record: Record) -> None:
    assert not folder.exists()
    assert not Path(record.claim).is_symlink()
    assert not [group for group in record.groups if Path(group).exists()]


async def test_the_next_box_is_made_of_the_spare(runtime: BubblewrapRuntime) -> None:
    boxes = [await make(runtime)]
    try:
        spare = await spare_of(runtime)
        assert record_in(spare.folder).owner == ""
        assert [box.id for box in await runtime.boxes(SPEC.owner)] == [boxes[0].id]
        boxes.append(await make(runtime))
        assert boxes[1].id == spare.folder.name
        assert record_in(spare.folder).owner == SPEC.owner
        groups = {await output(box, "cat /proc/self/cgroup; ulimit -a") for box in boxes}
        assert len(groups) == 1
        assert "sandbox-" not in groups.pop()
    finally:
        for box in boxes:
            await box.destroy()


async def test_a_spare_that_has_ended_leaves_no_trace_and_is_not_missed(
    runtime: BubblewrapRuntime, subtests: pytest.Subtests
) -> None:
    boxes = [await make(runtime)]
    try:
        for killed in ("warden", "keeper", "zygote"):
            with subtests.test(killed=killed):
                spare = await spare_of(runtime)
                record = record_in(spare.folder)
                (pid1,) = record.keeper.children()
                if killed == "zygote":
                    assert runtime._zygote is not None
                    assert runtime._zygote._process is not None
                    runtime._zygote._process.kill()
                    runtime._zygote._process.wait()
                else:
                    (pid1 if killed == "warden" else record.keeper).kill()
                    assert await pid1.ended(within_s=10)
                    assert await record.keeper.ended(within_s=10)
                boxes.append(await make(runtime))
                assert await output(boxes[-1], "echo hi") == "hi\n"
                if killed != "zygote":
                    assert_gone(spare.folder, record)
        spare = await spare_of(runtime)
        record = record_in(spare.folder)
        await runtime.close()
        assert_gone(spare.folder, record)
    finally:
        for box in boxes:
            await box.destroy()


SERVER = """
import asyncio, sys
from pathlib import Path
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime

async def main():
    runtime = BubblewrapRuntime(state_dir=Path(sys.argv[1]))
    box = await runtime.create(BoxSpec(owner=sys.argv[2]))
    await box.destroy()
    print((await runtime._spare._making).folder, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_spare_ends_with_its_server(state_dir: Path, subtests: pytest.Subtests) -> None:
    for keeper_too in (False, True):
        with subtests.test(keeper_too=keeper_too):
            words = [sys.executable, "-c", SERVER, str(state_dir), SPEC.owner]
            server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            with server:
                assert server.stdout is not None
                folder = Path(server.stdout.readline().strip())
                while (record := Record.read(folder)) is None:
                    await asyncio.sleep(0.01)
                if keeper_too:  # As when all of a service is killed.
                    record.keeper.kill()
                server.kill()
            assert await record.keeper.ended(within_s=10)
            async with BubblewrapRuntime(state_dir=state_dir) as after:
                await after.boxes(SPEC.owner)
            assert_gone(folder, record)


async def test_a_box_ends_with_its_keeper(runtime: BubblewrapRuntime) -> None:
    box = await make(runtime)
    (warden,) = keeper_of(box).children()
    keeper_of(box).kill()
    assert await warden.ended(within_s=10)
    await box.destroy()
    assert not box._folder.exists()


async def test_where_it_does_not_work_bubblewrap_starts_the_box(
    runtime: BubblewrapRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Zygote, "program", "raise SystemExit")
    box = await make(runtime)
    try:
        assert runtime._zygote is None
        assert await output(box, "echo hi") == "hi\n"
    finally:
        await box.destroy()
