"""Programs that are asked for something, and nobody waits for any more."""

import asyncio
import gc
import sys
from pathlib import Path

import pytest

from sandbox_server.subprocesses import output_of

TELL = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"


async def test_what_it_prints() -> None:
    assert await output_of(sys.executable, "-c", "print('here')") == b"here\n"
    with pytest.raises(OSError, match="nothing"):
        await output_of("/nothing")


async def test_one_that_is_cancelled_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    task = asyncio.create_task(output_of(sys.executable, "-c", TELL, str(path)))
    while not (path.exists() and path.read_text()):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{path.read_text()}").exists()
    gc.collect()  # What was left open would warn now, and fail the test.
