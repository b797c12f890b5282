"""One real server for all of these tests, a proxy that misbehaves before it, and a client."""

import os
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from sandbox_sdk import RemoteBackend
from tests.contract.conftest import state_dir
from tests.contract.stand import Stand, lone_standing, make_runtime, open_stand, served
from tests.remote.proxy import Proxy, proxied

__all__ = ["state_dir"]

RUNTIMES = os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",")
Connect = Callable[..., RemoteBackend]
FASTEST = next((name for name in ("bubblewrap", "docker") if name in RUNTIMES), None)


@pytest.fixture
async def stand(state_dir: Path) -> AsyncIterator[Stand]:
    if FASTEST is None:
        pytest.skip("no runtime here; scripts/engine.sh says why")
    async with (
        make_runtime(FASTEST, state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing) as made,
    ):
        yield made


@pytest.fixture
async def proxy(stand: Stand) -> AsyncIterator[Proxy]:
    async with served(stand.service) as url, proxied(url) as made:
        yield made


@pytest.fixture(params=["direct", "httpx"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """By connections of our own, or by httpx, which knows the proxies of the environment."""
    if request.param == "direct":
        return partial(RemoteBackend, nearby=True)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    return RemoteBackend


@pytest.fixture
async def remote(connect: Connect, proxy: Proxy) -> AsyncIterator[RemoteBackend]:
    async with connect(proxy.url) as backend:
        yield backend


@pytest.fixture
def thread_id() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"
