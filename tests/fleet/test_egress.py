"""What boxes fetch, with everything between a client and a box: over HTTP, and through a fleet."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes
from tests.egress import internet
from tests.fleet.fleet import GRACE_S, Fleet, default_runtime, remote
from tests.fleet.redis_server import RedisServer
from tests.internet import HERE, PACKAGE, PIECE, Internet
from tests.server_process import running

__all__ = ["internet"]

PIECES = 1600


@contextlib.asynccontextmanager
async def over_http(folder: Path, _redis: RedisServer, **network: str) -> AsyncIterator[Sandboxes]:
    async with running(default_runtime(), folder, **network) as server:
        await server.ready()
        async with RemoteBackend(server.url) as sandboxes:
            yield sandboxes


@contextlib.asynccontextmanager
async def routed(folder: Path, redis: RedisServer, **network: str) -> AsyncIterator[Sandboxes]:
    fleet = Fleet(default_runtime(), folder, redis, grace_s=GRACE_S)
    try:
        await fleet.run([fleet.process("worker", **network)], [fleet.process("coordinator")])
        async with remote(fleet.coordinators[0]) as sandboxes:
            yield sandboxes
    finally:
        await fleet.close()


@pytest.mark.parametrize("way", [over_http, routed], ids=["http", "routed"])
async def test_packages_code_and_100_megabytes(
    way: object, state_dir: Path, redis_server: RedisServer, internet: Internet
) -> None:
    internet.add_package()
    internet.add_repository()
    assert callable(way)
    network = {
        "SANDBOX_NETWORK": "allowlist",
        "SANDBOX_NETWORK_ALLOW": f"{HERE}:{internet.http}",
    }
    url = f"http://{HERE}:{internet.http}"
    async with way(state_dir, redis_server, **network) as sandboxes:

        async def output(command: str) -> str:
            done = await sandboxes.execute(ExecuteRequest(thread_id="t", command=command))
            assert done.exit_code == 0, done.output
            return str(done.output)

        await output("export NO_PROXY= no_proxy=")  # This machine stands for others.
        await output(f"pip install -q --target x --index-url {url}/simple/ {PACKAGE}")
        assert await output("cat x/*.py") == "answer = 42\n"
        assert "the first one" in await output(f"git clone -q {url}/code.git c && git -C c log -1")
        wanted = hashlib.sha256(PIECE * PIECES).hexdigest()
        assert wanted in await output(f"curl -sS '{url}/large?pieces={PIECES}' | sha256sum")
        told = (await sandboxes.session(Target(thread_id="t"))).egress
        assert told.bytes_in > PIECES * len(PIECE) > 100_000_000
        (row,) = (await sandboxes.usage(by="total")).rows
        assert row.egress_bytes >= told.bytes_in
