"""Previews of a fleet: on every coordinator, for the sessions of all workers."""

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from sandbox_sdk.protocol.models import CreateSessionRequest, Preview, Target
from tests.contract.preview_app import Visitor, exposed, serving
from tests.fleet.fleet import Fleet, default_runtime, remote, running_fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import ServerProcess

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def fleet(state_dir: Path, redis_server: RedisServer) -> AsyncIterator[Fleet]:
    async with running_fleet(
        default_runtime(), state_dir, redis_server, workers=2, coordinators=2
    ) as made:
        yield made


def at(coordinator: ServerProcess, preview: Preview) -> str:
    """The URL of a preview at another coordinator, as a balancer would choose it."""
    port = urlsplit(preview.url).port
    return preview.url.replace(f":{port}/", f":{coordinator.port + 1}/")


async def seen(url: str) -> int:
    """The status for a program that has the token."""
    async with Visitor(url, headers={"accept": "*/*"}) as visitor:
        try:
            return (await visitor.get(f"/x?{urlsplit(url).query}")).status_code
        except httpx.TransportError:
            return 0


async def until_seen(url: str) -> None:
    async with asyncio.timeout(90):
        while await seen(url) != 200:
            await asyncio.sleep(0.2)


async def test_every_coordinator_shows_those_of_every_worker(fleet: Fleet) -> None:
    first, second = fleet.coordinators
    async with remote(first) as sandboxes:
        previews = {}
        for number in range(8):
            name = f"t{number}"
            made = await sandboxes.create_session(CreateSessionRequest(thread_id=name))
            if made.worker not in previews:
                await serving(sandboxes, name)
                previews[made.worker] = name, await exposed(sandboxes, name)
        assert len(previews) == 2
        for _, preview in previews.values():
            assert urlsplit(preview.url).port == first.port + 1
            assert [await seen(at(each, preview)) for each in (first, second)] == [200, 200]
        for worker in fleet.workers:
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await asyncio.open_connection("127.0.0.1", worker.port + 1)
        name, preview = previews[fleet.workers[0].name]
        await fleet.workers[0].stop(signal.SIGTERM)
        await fleet.workers[0].start()
        await until_seen(preview.url)
        other_name, other = next(p for p in previews.values() if p[0] != name)
        await sandboxes.cleanup(Target(thread_id=other_name))
        assert await seen(at(second, other)) == 401
        assert await fleet.index.previews(other.session_id) is None
        await sandboxes.unexpose(Target(thread_id=name), preview.port)
        assert [await seen(at(each, preview)) for each in (first, second)] == [401, 401]
        again = await exposed(sandboxes, name)
        await fleet.redis.flush()  # The workers tell again what they have.
        await until_seen(at(second, again))
        await until_refused_alike(preview.url)


async def until_refused_alike(without_access: str) -> None:
    """Whoever has no access sees the same where there is a preview and where there is none: first
    that it has to wait, until all sessions that there are can be known, then that it may not."""
    session_id = urlsplit(without_access).netloc.partition(".")[0].partition("-")[2]
    unknown = without_access.replace(session_id, str(uuid.uuid4()))
    found: list[int] = []
    async with asyncio.timeout(90):
        while not found or found[-1] != 401:
            before, other, after = [
                await seen(url) for url in (without_access, unknown, without_access)
            ]
            if before == after:
                assert other == before
                found.append(before)
            await asyncio.sleep(0.2)
    assert set(found) <= {503, 401}
    assert found == sorted(found, reverse=True), "once it is known, it stays so"
