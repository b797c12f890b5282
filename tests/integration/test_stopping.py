"""A server that is told to stop while it still starts."""

import asyncio
import signal
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.models import ExecuteRequest
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.server_process import PATIENCE_S, ServerProcess, running

__all__ = ["state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
COMMAND = ExecuteRequest(thread_id="t", command="n=$((n+1)); echo $n")


async def at_its_first_lines(server: ServerProcess) -> None:
    """When a signal no longer ends the interpreter: it is held back. Nothing is imported yet."""
    term = 1 << (signal.SIGTERM - 1)
    async with asyncio.timeout(PATIENCE_S):
        while not _held_back(server.pid) & term:
            await asyncio.sleep(0)


def _held_back(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_boxes_to_destroy_are_destroyed(state_dir: Path, processes: str) -> None:
    """As PID 1 of a container the signal was lost; the server was killed later, its boxes left."""
    async with running("bubblewrap", state_dir, SANDBOX_PROCESSES=processes) as server:
        await server.healthy()
        async with RemoteBackend(server.url) as client:
            assert (await client.execute(COMMAND)).output == "1\n"
        await server.stop(signal.SIGTERM)
        server.settings["SANDBOX_DESTROY_ON_EXIT"] = "true"
        await server.start()
        await at_its_first_lines(server)
        server.send(signal.SIGTERM)
        assert await server.ended() == 0, server.log()
        async with make_runtime("bubblewrap", state_dir) as boxes:
            for owner in server.owners():
                assert await boxes.boxes(owner) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_start_ends_at_once(state_dir: Path, number: signal.Signals) -> None:
    """Nothing is made, and what was there waits for the next one."""
    async with running("bubblewrap", state_dir) as server:
        await server.ready()
        async with RemoteBackend(server.url) as client:
            assert (await client.execute(COMMAND)).output == "1\n"
        await server.stop(signal.SIGTERM)
        told = len(server.lines())
        await server.start()
        await at_its_first_lines(server)
        if number == signal.SIGINT:
            await _listens(server)
        server.send(number)
        assert await server.ended() == 0, server.log()
        assert not any("server.listening" in line for line in server.lines()[told:])
        await server.start()
        await server.ready()
        async with RemoteBackend(server.url) as client:
            assert (await client.execute(COMMAND)).output == "2\n"


async def _listens(server: ServerProcess) -> None:
    """The handlers are there, and the start is not over."""
    async with asyncio.timeout(PATIENCE_S):
        while _held_back(server.pid):
            await asyncio.sleep(0)
