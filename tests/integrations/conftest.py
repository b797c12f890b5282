"""Real sandboxes to integrate with, of a server in the loop of the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.conftest import RUNTIMES, state_dir
from tests.contract.stand import Stand, lone_standing, make_runtime, open_stand

__all__ = ["state_dir"]


@pytest.fixture(params=[name for name in RUNTIMES if name != "gvisor"])
async def stand(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[Stand]:
    """gVisor is docker to whoever calls a server."""
    async with (
        make_runtime(str(request.param), state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing) as made,
    ):
        yield made
