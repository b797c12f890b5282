"""Ctrl-C ends a run of the tests, and what it had started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import RUNTIMES
from tests.lanes import VARIABLES
from tests.leftovers import Leftovers
from tests.run import VARIABLE

ROOT = Path(__file__).parents[2]
SLOW = """
import asyncio
import signal
from pathlib import Path

import pytest

from sandbox_server.runtime.base import BoxSpec
from tests.contract.conftest import make_runtime, state_dir
from tests.run import run_owner


@pytest.mark.timeout(300)
async def test_it(state_dir):
    async with make_runtime("bubblewrap", state_dir) as runtime:
        await runtime.create(BoxSpec(owner=run_owner("interrupted"), deadman_s=300))
        Path(__file__).with_name("begun").touch()
        await asyncio.sleep(250)
"""


@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
def test_nothing_is_left(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)
    (tmp_path / "test_slow.py").write_text(SLOW)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    base = tmp_path / "base"
    run = "0f0f0f0f"
    foreign = ("PYTEST_", VARIABLE, *VARIABLES)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", f"--basetemp={base}",
         str(tmp_path / "test_slow.py")],
        env={**kept, VARIABLE: run}, cwd=ROOT, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as pytest_run:  # fmt: skip
        while not (tmp_path / "begun").exists():
            assert pytest_run.poll() is None, pytest_run.communicate()[0]
        os.killpg(pytest_run.pid, signal.SIGINT)
        output, _ = pytest_run.communicate()
    assert pytest_run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "interrupted; stopped what still ran: " in output
    left = Leftovers(base).found()
    assert [t for t in left if str(base) in str(t) or t.kind == "control group"] == []
