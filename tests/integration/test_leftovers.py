"""What a run has left behind is found, and what others have on the same machine is not its."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox_server.runtime.base import Box, BoxSpec, Runtime
from tests.contract.conftest import make_runtime, server_runtime, state_dir
from tests.leftovers import Leftovers
from tests.run import VARIABLE, run_owner

__all__ = ["server_runtime", "state_dir"]


@asynccontextmanager
async def a_box(runtime: Runtime, owner: str) -> AsyncIterator[Box]:
    box = await runtime.create(BoxSpec(owner=owner, deadman_s=60))
    try:
        yield box
    finally:
        await box.destroy()


async def test_a_box_of_this_run_is_found(server_runtime: Runtime, state_dir: Path) -> None:
    leftovers = Leftovers(state_dir)
    async with a_box(server_runtime, run_owner("left")) as box:
        found = leftovers.found()
    kinds = {trace.kind for trace in found if box.id in str(trace) or trace.kind == "volume"}
    wanted = {"docker": {"container", "volume"}, "kubernetes": {"pod"}, "bubblewrap": {"process"}}
    assert wanted[server_runtime.name] <= kinds


@pytest.mark.parametrize("name", ["docker", "bubblewrap"])
async def test_a_box_of_somebody_else_is_not(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if name not in os.environ.get("SANDBOX_TEST_RUNTIMES", ""):
        pytest.skip(f"no {name} here")
    theirs, ours = (tmp_path_factory.mktemp(name) for name in ("theirs", "ours"))
    for folder in (theirs, *theirs.parents[:3]):
        folder.chmod(0o711)
    async with make_runtime(name, theirs) as runtime, a_box(runtime, "somebody-else") as box:
        found, of_theirs = Leftovers(ours).found(), Leftovers(theirs).found()
    kinds = {"control group", "loop device"}
    assert [trace for trace in found if box.id in str(trace) or trace.kind in kinds] == []
    if os.geteuid() == 0:
        wanted = kinds if name == "bubblewrap" else {"loop device"}
        assert wanted <= {trace.kind for trace in of_theirs}


def test_a_process_of_this_run_is_found(tmp_path: Path) -> None:
    leftovers = Leftovers(tmp_path)
    sleeping = [sys.executable, "-c", "input()"]
    ours = {**os.environ, "FOLDER": f"{tmp_path}/x"}
    theirs = {k: v for k, v in os.environ.items() if k != VARIABLE}
    with (
        subprocess.Popen(sleeping, env=ours, stdin=subprocess.PIPE) as found,
        subprocess.Popen(sleeping, env=theirs, stdin=subprocess.PIPE) as foreign,
    ):
        pids = {int(trace.what) for trace in leftovers.found() if trace.kind == "process"}
        for process in (found, foreign):
            process.terminate()
            process.communicate()
    assert found.pid in pids
    assert foreign.pid not in pids
