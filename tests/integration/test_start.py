"""What a server says when it starts with settings that cannot work, or mean nothing."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import CreateSessionRequest, Target
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.main import open_service
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES, state_dir

__all__ = ["state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
QUIET = {"runtime": "bubblewrap", "pool_size": 0, "min_pool_size": 0, "worker_id": "start"}


async def test_a_network_that_no_box_can_have(state_dir: Path) -> None:
    """It started, said that all limits hold, and no box ever came up."""
    settings = load(**QUIET, state_dir=state_dir, network="bridge")
    with pytest.raises(InvalidRequest, match="SANDBOX_NETWORK=bridge needs the docker runtime"):
        async with open_service(settings):
            pass


async def test_an_image_that_no_box_has(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was ignored; one that stands for a policy still means something."""
    monkeypatch.setenv("REDIS_HOST", "somewhere")
    settings = load(
        **QUIET,
        state_dir=state_dir,
        environments={"node": "node:20", "untrusted": "x"},
        policies={"untrusted": "strict"},
        destroy_on_exit=True,
    )
    with capture_logs() as entries:
        async with open_service(settings) as service:
            sandboxes = service.of(SOLE_TENANT)
            for name in ("node", "unknown"):
                with pytest.raises(InvalidRequest, match="use docker"):
                    await sandboxes.create_session(CreateSessionRequest(environment=name))
            made = await sandboxes.create_session(CreateSessionRequest(environment="untrusted"))
            await sandboxes.cleanup(Target(session_id=made.session_id))
    told = {entry["setting"] for entry in entries if entry["event"] == "setting.unused"}
    assert {"SANDBOX_ENVIRONMENTS", "REDIS_HOST"} <= told
