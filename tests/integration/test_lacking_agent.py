"""An agent that lacks something: what needs it is refused, the rest works as ever."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk import InvalidRequest, RemoteBackend
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_server.runtime.warden.client import WardenClient
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.contract.stand import lone_standing, open_stand, served

__all__ = ["state_dir"]

RUNTIME = "bubblewrap" if "bubblewrap" in RUNTIMES else "docker"

pytestmark = pytest.mark.skipif(not RUNTIMES, reason="no runtime here")


@pytest.fixture
async def remote(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemoteBackend]:
    monkeypatch.setattr(WardenClient, "lacks", frozenset({"replay", "stdin"}))
    async with (
        make_runtime(RUNTIME, state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing) as stand,
        served(stand.service) as url,
        RemoteBackend(url) as backend,
    ):
        yield backend


async def test_what_needs_it_is_refused(remote: RemoteBackend) -> None:
    started = await remote.execute(
        ExecuteRequest(thread_id="t", command="echo hi", background=True)
    )
    assert started.exit_code is None
    with pytest.raises(InvalidRequest, match=r"following a command .* needs 'replay'") as refused:
        async for _ in remote.follow(Target(thread_id="t"), started.command_id):
            pass
    assert refused.value.details["ability"] == "replay"
    with pytest.raises(InvalidRequest, match="stdin_open needs 'stdin'"):
        await remote.execute(ExecuteRequest(thread_id="t", command="cat", stdin_open=True))


async def test_the_rest_works(remote: RemoteBackend) -> None:
    request = ExecuteRequest(thread_id="t", command="cat; echo $?", stdin="in\n")
    assert (await remote.execute(request)).stdout == "in\n0\n"
    events = [event async for event in remote.stream(request)]
    assert events[-1].exit_code == 0  # type: ignore[union-attr]
