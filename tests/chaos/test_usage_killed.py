"""kill -9 of the server in the middle of commands: what boxes have used is counted once."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import ExecuteRequest, ExecuteResult, Target, UsageRow
from sandbox_server.runtime.control_groups import Measured
from tests import lanes
from tests.contract.conftest import RUNTIMES, make_runtime
from tests.server_process import ServerProcess, running

ROUNDS = lanes.rounds(5, "USAGE_ROUNDS")
COMMAND = (
    "head -c 30000000 /dev/zero | sha256sum >> sums; echo x >> began; sleep 0.2;"
    " head -c 1000 /dev/zero"
)
OUTPUT = 1000


async def insist(client: RemoteBackend, request: ExecuteRequest) -> ExecuteResult:
    for _ in range(600):
        try:
            return await client.execute(request)
        except RuntimeUnavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("the server never came back")


async def measured(server: ServerProcess, state_dir: Path) -> Measured:
    async with make_runtime(server.runtime, state_dir) as runtime:
        used = [await box.measure() for box in await runtime.boxes(server.name)]
    (found,) = [each for each in used if each is not None]
    return found


async def row_and_box(
    client: RemoteBackend, server: ServerProcess, state_dir: Path
) -> tuple[UsageRow, Measured]:
    """The session's row, and what the kernel says of its box, of a moment when nothing runs."""
    for _ in range(100):
        (row,) = (await client.usage(by="session")).rows
        box = await measured(server, state_dir)
        if round(row.cpu_seconds * 1e6) == box.cpu_us:
            return row, box
        await asyncio.sleep(0.05)
    return row, box


@pytest.mark.rounds
@pytest.mark.timeout(120 + 20 * ROUNDS)
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_usage_is_counted_once(runtime: str, state_dir: Path) -> None:
    none_warm = {"SANDBOX_POOL_SIZE": "0", "SANDBOX_MAX_POOL_SIZE": "0"}
    async with (
        running(runtime, state_dir, **none_warm) as server,
        RemoteBackend(server.url, retry_for_s=60) as client,
    ):
        await insist(client, ExecuteRequest(thread_id="t", command="true"))
        for number in range(ROUNDS):
            request = ExecuteRequest(
                thread_id="t", command=COMMAND, idempotency_key=f"round-{number}"
            )
            call = asyncio.create_task(insist(client, request))
            await asyncio.sleep(0.02 + 0.3 * (number % 7) / 7)
            await server.stop()
            await server.start()
            result = await call
            assert (result.exit_code, result.output_bytes) == (0, OUTPUT), server.log()
        counted = await insist(client, ExecuteRequest(thread_id="t", command="wc -l < began"))
        assert counted.output == f"{ROUNDS}\n"
        row, box = await row_and_box(client, server, state_dir)
        print(f"{row.commands} commands, ledger {row.cpu_seconds} s, cgroup {box.cpu_us} us")
        assert row.commands == ROUNDS + 2
        assert round(row.cpu_seconds * 1e6) == box.cpu_us
        assert row.memory_peak_bytes == box.memory_peak
        assert row.bytes_out == ROUNDS * OUTPUT + len(counted.output)
        assert 0.2 * ROUNDS < row.command_seconds < row.session_seconds
        (total,) = (await client.usage(by="total")).rows
        assert (total.commands, total.cpu_seconds) == (row.commands, row.cpu_seconds)
        await client.cleanup(Target(thread_id="t"))
        (after,) = (await client.usage(by="session")).rows
        assert (after.commands, after.bytes_out) == (row.commands, row.bytes_out)
        assert after.cpu_seconds >= row.cpu_seconds
