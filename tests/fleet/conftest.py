"""A real Redis and the parts of a fleet on top of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_server.fleet.store import Store
from tests.contract.conftest import state_dir
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


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[Store]:
    made = Store.open(redis_server.url)
    try:
        yield made
    finally:
        await made.close()
