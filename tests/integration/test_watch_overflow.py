"""More changes at once than the kernel keeps for a watch: what is missing is told."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_server.runtime.bubblewrap.runtime import BubblewrapBox, BubblewrapRuntime
from tests.contract.conftest import RUNTIMES, state_dir

from .test_zygote import keeper_of, make, runtime

__all__ = ["runtime", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
KEPT = Path("/proc/sys/fs/inotify/max_queued_events")
MANY = (
    "until [ -e go ]; do sleep 0.02; done;"
    ' python3 -c \'import os\nfor i in range({}): os.mkdir("d/x"); os.rmdir("d/x")\';'
    " touch done"
)


@pytest.fixture
async def box(runtime: BubblewrapRuntime) -> AsyncIterator[BubblewrapBox]:
    made = await make(runtime)
    yield made
    await made.destroy()


async def test_a_queue_that_overflows(box: BubblewrapBox) -> None:
    """While the warden stands still, nobody reads what the kernel tells."""
    (process,) = keeper_of(box).children()
    workspace = Path(f"/proc/{process.pid}/root/workspace")
    async with box.agent() as warden:
        await warden.run("mkdir d")
        watch = await warden.watch("d", recursive=True)
        await warden.start(MANY.format(int(KEPT.read_text())), timeout_s=None)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            (workspace / "go").touch()
            async with asyncio.timeout(60):
                while not (workspace / "done").exists():
                    await asyncio.sleep(0.05)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        await warden.run("touch d/later; mkdir d/new; touch d/new/in-it")
        told: list[str] = []
        position = watch.position
        while "create new/in-it" not in told:
            found = await warden.watched(watch.watch_id, after=position, wait_s=30)
            position = found.position
            told += [f"{each.kind} {each.path}" for each in found.events]
    before = told[: told.index("create later")]
    assert before[-1] == "gap .", "the queue's end says that it was full"
