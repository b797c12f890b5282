"""An upgrade, and the way back: wardens, workers, coordinators and SDKs of the version before this
one work with those of this one, and no session is lost."""

import asyncio
import signal
import sys
import zipfile
from pathlib import Path

import pytest

from tests.contract.conftest import state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import GRACE_S, Fleet, default_runtime
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess, running

__all__ = ["redis_server", "state_dir"]

WHEEL = max(Path(__file__).parent.glob("agent_sandbox-*.whl"))
OURS = ""

BEGIN = """
import sys
from sandbox_sdk import SandboxClient

with SandboxClient(thread_id=sys.argv[2], server_url=sys.argv[1]) as sandbox:
    result = sandbox.execute("mkdir d; cd d; kept=1; sleep 1000 & sleeper=$!")
    assert result.exit_code == 0, result
    print(result.session_id, result.generation)
"""
GO_ON = """
import sys
from sandbox_sdk import SandboxClient
from sandbox_sdk.protocol.errors import SandboxError

with SandboxClient(thread_id=sys.argv[2], server_url=sys.argv[1]) as sandbox:
    command = "echo $kept $PWD $a; kill -0 $sleeper; echo err >&2; (exit 3)"
    result = sandbox.execute(command, env={"a": "b"}, stdin="x")
    assert result.stdout == "1 /workspace/d b\\n", result
    assert (result.stderr, result.exit_code) == ("err\\n", 3), result
    sandbox.upload_bytes(b"x" * 300_000, "d/f")
    assert sandbox.download_bytes("d/f") == b"x" * 300_000
    assert [entry.name for entry in sandbox.list_files("d").entries] == ["f"]
    events = {event.event for event in sandbox.stream("echo 1; echo 2 >&2")}
    assert events == {"start", "stdout", "stderr", "exit"}, events
    process = sandbox.start("cat", stdin_open=True)
    process.send_stdin("in")
    process.close_stdin()
    assert process.wait().output == "in"
    try:
        sandbox.execute("true", cwd="/nope")
    except SandboxError as error:
        assert error.code == "file_not_found", error
    info = sandbox.session()
    assert sandbox.health().status == "healthy"
    print(info.session_id, info.generation)
"""


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the packages of the version before this one are."""
    folder = tmp_path_factory.mktemp("previous")
    zipfile.ZipFile(WHEEL).extractall(folder)
    return str(folder)


async def use(sdk: str, program: str, url: str, thread: str) -> str:
    """What a program says that uses a thread through the SDK of some version."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, url, thread,
        env={"PYTHONPATH": sdk, "PATH": "/usr/bin:/bin"}, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def becomes(server: ServerProcess, version: str) -> None:
    """Stop a server in order, and start it again in another version."""
    await server.stop(signal.SIGTERM)
    server.settings["PYTHONPATH"] = version
    await server.start()
    await server.ready()


async def test_a_server_is_upgraded_and_rolled_back(previous: str, state_dir: Path) -> None:
    settings = {"PYTHONPATH": previous, "SANDBOX_POOL_SIZE": "0"}
    async with running(default_runtime(), state_dir, **settings) as server:
        await server.ready()
        old = await use(previous, BEGIN, server.url, "old-warden")
        assert await use(OURS, GO_ON, server.url, "old-warden") == old

        await becomes(server, OURS)
        assert await use(previous, GO_ON, server.url, "old-warden") == old
        assert await use(OURS, GO_ON, server.url, "old-warden") == old
        new = await use(previous, BEGIN, server.url, "new-warden")
        assert await use(OURS, GO_ON, server.url, "new-warden") == new

        await becomes(server, previous)
        assert await use(OURS, GO_ON, server.url, "new-warden") == new
        assert await use(previous, GO_ON, server.url, "old-warden") == old


@pytest.mark.rest
async def test_a_fleet_is_upgraded_and_rolled_back(
    previous: str, state_dir: Path, redis_server: RedisServer
) -> None:
    fleet = Fleet(default_runtime(), state_dir, redis_server, grace_s=GRACE_S)
    try:
        worker = fleet.process("worker", PYTHONPATH=previous, SANDBOX_POOL_SIZE="0")
        coordinator = fleet.process("coordinator", PYTHONPATH=previous)
        await fleet.run([worker], [coordinator])
        session = await use(OURS, BEGIN, coordinator.url, "thread")

        await becomes(worker, OURS)
        assert await use(previous, GO_ON, coordinator.url, "thread") == session
        await becomes(coordinator, OURS)
        assert await use(previous, GO_ON, coordinator.url, "thread") == session
        await becomes(worker, previous)
        assert await use(OURS, GO_ON, coordinator.url, "thread") == session
    finally:
        await fleet.close()
