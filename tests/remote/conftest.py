"""One real server for all of these tests, a proxy that misbehaves before it, and a client."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk import RemoteBackend
from tests.contract.conftest import state_dir
from tests.contract.stand import Stand, make_runtime, open_stand, served
from tests.remote.proxy import Proxy, proxied

__all__ = ["state_dir"]

RUNTIMES = os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",")
FASTEST = next((name for name in ("bubblewrap", "docker") if name in RUNTIMES), None)


@pytest.fixture
async def stand(state_dir: Path) -> AsyncIterator[Stand]:
    if FASTEST is None:
        pytest.skip("no runtime here; scripts/engine.sh says why")
    async with make_runtime(FASTEST, state_dir) as runtime, open_stand(runtime, state_dir) as made:
        yield made


@pytest.fixture
async def proxy(stand: Stand) -> AsyncIterator[Proxy]:
    async with served(stand.service) as url, proxied(url) as made:
        yield made


@pytest.fixture
async def remote(proxy: Proxy) -> AsyncIterator[RemoteBackend]:
    async with RemoteBackend(proxy.url) as backend:
        yield backend


@pytest.fixture
def thread_id() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"
