"""SANDBOX_COMMAND_TIMEOUT is what a command may take where its caller does not say."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk import AsyncSandboxClient, ExitEvent, LocalBackend, RemoteBackend, Sandboxes
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, SessionLimits, Target
from sandbox_sdk.testing import FakeBackend
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.service import SandboxService
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.contract.stand import LIMITS, lone_standing, open_stand, served

__all__ = ["state_dir"]

RUNTIME = "bubblewrap" if "bubblewrap" in RUNTIMES else "docker"
SHORT_S = 0.3

pytestmark = pytest.mark.skipif(not RUNTIMES, reason="no runtime here")


@pytest.fixture
async def limited(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[SandboxService]:
    """A service whose commands may take so long."""
    limits = LIMITS.model_copy(update={"command_timeout_s": request.param})
    async with (
        make_runtime(RUNTIME, state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing, limits=limits) as stand,
    ):
        yield stand.service


async def timed_out(sandboxes: Sandboxes) -> tuple[bool, bool]:
    """Without a timeout of its own, and with one."""
    slow = ExecuteRequest(thread_id="t", command="sleep 1; echo done")
    patient = ExecuteRequest(thread_id="t", command="sleep 1; echo done", timeout=60)
    return (await sandboxes.execute(slow)).timed_out, (await sandboxes.execute(patient)).timed_out


@pytest.mark.parametrize("limited", [SHORT_S], indirect=True)
async def test_in_process_and_over_http(limited: SandboxService) -> None:
    assert await timed_out(limited.of(SOLE_TENANT)) == (True, False)
    async with served(limited) as url, RemoteBackend(url) as remote:
        assert await timed_out(remote) == (True, False)
        events = [
            event
            async for event in remote.stream(ExecuteRequest(thread_id="t", command="sleep 60"))
        ]
        assert events[-1].timed_out  # type: ignore[union-attr]


async def ends_as(sandboxes: Sandboxes, command: str, **options: Any) -> tuple[bool, int]:
    """How a background command ends: timed_out and exit code."""
    request = ExecuteRequest(thread_id="t", command=command, background=True, **options)
    started = await sandboxes.execute(request)
    async for event in sandboxes.follow(Target(thread_id="t"), started.command_id):
        last = event
    assert isinstance(last, ExitEvent)
    return last.timed_out, last.exit_code


@pytest.mark.parametrize("limited", [SHORT_S], indirect=True)
async def test_a_background_command_has_none_unless_it_is_given(limited: SandboxService) -> None:
    local = limited.of(SOLE_TENANT)
    async with served(limited) as url, RemoteBackend(url) as remote:
        for sandboxes in (local, remote):
            assert await ends_as(sandboxes, "sleep 1; exit 3") == (False, 3)
            assert await ends_as(sandboxes, "sleep 60", timeout=SHORT_S) == (True, 124)
        async with AsyncSandboxClient("t", backend=remote) as client:
            process = await client.start("sleep 1; exit 4")
            assert (await process.wait()).exit_code == 4


async def test_the_fake_has_none_for_the_background_either() -> None:
    fake = FakeBackend()
    limits = SessionLimits(command_timeout_s=0.5)
    await fake.create_session(CreateSessionRequest(thread_id="t", limits=limits))
    fake.on("sleep 60", takes_s=60)
    fake.on("sleep 1; exit 3", takes_s=0.6, exit_code=3)
    assert await ends_as(fake, "sleep 1; exit 3") == (False, 3)
    assert await ends_as(fake, "sleep 60", timeout=0.05) == (True, 124)
    assert (await fake.execute(ExecuteRequest(thread_id="t", command="sleep 60"))).timed_out


async def test_of_a_local_service(state_dir: Path) -> None:
    folder = state_dir / "command-timeout"
    async with LocalBackend(
        runtime="bubblewrap" if RUNTIME == "bubblewrap" else "docker",
        state_dir=folder,
        command_timeout=SHORT_S,
    ) as local:
        assert await timed_out(local) == (True, False)
        await local.cleanup(Target(thread_id="t"))


@pytest.mark.parametrize("limited", [60.0], indirect=True)
async def test_a_client_waits_for_as_long_as_the_server_gives(limited: SandboxService) -> None:
    """It cannot know that before, and finds out when no answer comes."""
    async with served(limited) as url, RemoteBackend(url, read_timeout_s=0.3) as remote:
        await remote.execute(ExecuteRequest(thread_id="t", command="true", timeout=60))
        remote._server.command_timeout_s = 0.1
        command = "echo x >> runs; sleep 1; wc -l < runs"
        result = await remote.execute(ExecuteRequest(thread_id="t", command=command))
        assert (result.output, remote._server.command_timeout_s) == ("1\n", 60)
