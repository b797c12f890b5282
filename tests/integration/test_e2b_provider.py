"""The e2b runtime when something goes wrong, on a server of ours behind its e2b door."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox_sdk import AsyncSandboxClient
from sandbox_sdk.protocol import errors
from sandbox_server.runtime.base import Box, BoxSpec
from sandbox_server.runtime.e2b import E2bAccount, E2bRuntime
from tests.contract.conftest import RUNTIMES, state_dir
from tests.contract.e2b_door import KEY, E2bDoor, open_door
from tests.run import run_owner
from tests.server_process import ServerProcess, running

__all__ = ["state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")

OWNER = run_owner("e2b-provider")


@pytest.fixture(scope="module", autouse=True)
def door(state_dir: Path) -> Iterator[None]:
    with open_door(state_dir / "provider-door"):
        yield


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with E2bDoor.runtime() as runtime:
        made = await runtime.create(BoxSpec(owner=OWNER, deadman_s=300))
        yield made
        await made.destroy()


async def test_a_wrong_key_is_told_and_not_shown() -> None:
    async with E2bDoor.runtime(key="not-the-key") as runtime:
        for call in (runtime.about(), runtime.boxes(OWNER), runtime.create(BoxSpec(owner=OWNER))):
            with pytest.raises(errors.RuntimeUnavailable, match="refuses the API key") as caught:
                await call
            assert "not-the-key" not in caught.value.message


async def test_an_unknown_template_is_told() -> None:
    async with E2bDoor.runtime() as runtime:
        with pytest.raises(errors.SandboxError, match="no-such-template"):
            await runtime.create(BoxSpec(owner=OWNER, template="no-such-template"))


async def test_e2b_away() -> None:
    url = "http://127.0.0.1:1/e2b"
    async with E2bRuntime(E2bAccount(api_key=KEY, api_url=url, sandbox_url=url)) as runtime:
        with pytest.raises(errors.RuntimeUnavailable):
            await runtime.create(BoxSpec(owner=OWNER))
        with pytest.raises(errors.RuntimeUnavailable):
            await runtime.boxes(OWNER)


async def test_a_sandbox_that_is_gone(box: Box) -> None:
    async with box.agent() as agent:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_lost(agent.run("sleep 100", timeout_s=200)))
            while not (await agent.state()).commands:
                await asyncio.sleep(0.02)
            await box.destroy()
        assert await running
        for call in (agent.ping(), agent.run("true"), agent.state(), agent.stat("x")):
            assert await _lost(call)
    assert not await box.is_alive()
    await box.destroy()


async def _lost(call: object) -> bool:
    with pytest.raises(errors.SessionLost):
        await call  # type: ignore[misc]
    return True


async def test_a_box_is_found_by_its_owner_alone(box: Box) -> None:
    async with E2bDoor.runtime() as runtime:
        assert [each.id for each in await runtime.boxes(OWNER)] == [box.id]
        assert await runtime.boxes("somebody-else") == []


async def test_a_key_runs_once_although_another_process_asks(box: Box) -> None:
    async with box.agent() as first:
        one = await first.run("echo x >>file; exit 3", key="key")
    async with box.agent(epoch=2) as second:
        again = await second.run("echo x >>file; exit 3", key="key")
        assert (again.command_id, again.exit_code) == (one.command_id, 3)
        assert "restarted" in again.output
        with pytest.raises(errors.IdempotencyMismatch):
            await second.run("another", key="key")
        assert (await second.run("cat file")).output == "x\n"


async def test_an_earlier_owner_is_fenced(box: Box) -> None:
    async with box.agent(epoch=5):
        pass
    with pytest.raises(errors.RuntimeUnavailable, match="epoch 5"):
        await box.agent(epoch=4).connect()


async def test_a_killed_server_finds_its_sessions_again(state_dir: Path) -> None:
    folder = state_dir / "e2b-server"
    folder.mkdir(mode=0o711)
    door = f"{E2bDoor.url}/e2b"
    settings = {
        "SANDBOX_E2B_API_KEY": KEY,
        "SANDBOX_E2B_API_URL": door,
        "SANDBOX_E2B_SANDBOX_URL": door,
        "SANDBOX_POOL_SIZE": "0",
        "SANDBOX_MAX_POOL_SIZE": "0",
    }
    async with running("e2b", folder, **settings) as server:
        await server.healthy()
        await _go_through_a_kill(server)
        assert KEY not in "".join(server.lines())


async def _go_through_a_kill(server: ServerProcess) -> None:
    async with AsyncSandboxClient("t", server_url=server.url) as sandbox:
        await sandbox.execute("x=1; cd /tmp")
        process = await sandbox.start("echo early; until [ -e go ]; do sleep 0.1; done; exit 3")
        while "early" not in (await process.result()).output:
            await asyncio.sleep(0.05)
        await server.stop(signal.SIGKILL)
        await server.start()
        await server.healthy()
        after = await sandbox.execute("echo $x; pwd; touch go")
        assert (after.output, after.generation) == ("1\n/tmp\n", 1)
        ended = await process.wait()
        assert ended.exit_code == 3
        assert "server was restarted" in ended.output
        await sandbox.cleanup()
