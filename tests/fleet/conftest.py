"""A real Redis and the parts of a fleet on top of it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.store import Store
from tests.contract.conftest import state_dir
from tests.fleet import redis_kinds
from tests.fleet.redis_server import RedisServer, redis_program

__all__ = ["state_dir"]


@pytest.fixture
async def redis_server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    if redis_program() is None:
        pytest.skip("no redis-server here")
    server = RedisServer(tmp_path / "redis")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture(params=["redis", "sentinel", "cluster"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(request.param, tmp_path / request.param) as made:
        yield made


@contextlib.asynccontextmanager
async def opened_store(kind: str, folder: Path) -> AsyncIterator[Store]:
    """On a Redis of this kind, of its own."""
    if redis_program() is None:
        pytest.skip("no redis-server here")
    async with contextlib.AsyncExitStack() as stack:
        if kind == "sentinel":
            url, _ = await stack.enter_async_context(redis_kinds.watched(folder))
        else:
            make = redis_kinds.cluster if kind == "cluster" else redis_kinds.one
            url = await stack.enter_async_context(make(folder))
        made = Store.open(url)
        stack.push_async_callback(made.close)
        yield made


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[Store]:
    made = Store.open(redis_server.url)
    try:
        yield made
    finally:
        await made.close()


def may_serve(lease: RedisLease) -> bool:
    try:
        lease.check()
    except RuntimeUnavailable:
        return False
    return True
