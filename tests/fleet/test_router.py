"""How a coordinator reaches its workers: one client each, and what it does when one is unable."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_sdk.backends.remote import RemoteBackend, RemoteTenants
from sandbox_sdk.protocol.errors import (
    Capacity,
    InvalidRequest,
    NotListening,
    RuntimeUnavailable,
)
from sandbox_sdk.protocol.models import (
    ConnectRequest,
    CreateSessionRequest,
    ExecuteRequest,
    Session,
    Target,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.testing import FakeBackend
from sandbox_server.api.auth import SOLE_TENANT, ApiKeys
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.router import Router
from sandbox_server.fleet.routing import RoutedTenants
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Phase, Worker, worker_fields
from tests.contract.conftest import make_runtime
from tests.contract.stand import routed_stand, served
from tests.fleet.fleet import default_runtime
from tests.fleet.redis_server import up_for_long
from tests.ports import free_port
from tests.tenants import Fakes

GRACE_S = 60.0
NEW = CreateSessionRequest()


async def piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Client(RemoteTenants):
    """One that tells whether it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()


class Fleet:
    """Workers on real sockets, whose sandboxes are fakes, and a coordinator's view of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stack = contextlib.AsyncExitStack()
        self.clients: list[Client] = []
        self.now = time.monotonic()

    async def __aenter__(self) -> "Fleet":
        await up_for_long(self._store)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def worker(self, name: str, sandboxes: FakeBackend, **card: Any) -> Worker:
        keys = ApiKeys([], fleet_key="fleet", of_worker=True)
        url = await self._stack.enter_async_context(served(Fakes(sandboxes), keys=keys))
        return await self.card(name, url, **card)

    async def card(self, name: str, url: str, *, lease_s: float = 60, **card: Any) -> Worker:
        """What Redis says of a worker, whoever it is."""
        worker = Worker(id=name, url=url, **{"capacity": 9, "phase": Phase.SERVING, **card})
        key = self._store.worker_key(name)
        told = worker_fields(worker)
        await self._store.acquire(key, name, ttl_s=lease_s, keep_s=60, fields=told)
        await self._store.note_worker(name, now_ms=await self._store.now_ms())
        return worker

    async def coordinator(self, *, patience_s: float = 10) -> tuple[Router, RoutedTenants]:
        def connect(url: str) -> Client:
            self.clients.append(Client(url, fleet_key="fleet"))
            return self.clients[-1]

        index = SessionIndex(self._store, lease_s=0.1, grace_s=GRACE_S)
        directory = Directory(index, grace_s=GRACE_S)
        router = Router(directory, connect, patience_s=patience_s, clock=lambda: self.now)
        await self._stack.enter_async_context(router)
        return router, RoutedTenants(directory, router, coordinator_id="c")

    async def sandboxes(self) -> Sandboxes:
        """Those of the sole tenant, as a coordinator sees them."""
        _, tenants = await self.coordinator()
        return tenants.of(SOLE_TENANT)


@pytest.fixture
async def fleet(store: Store) -> AsyncIterator[Fleet]:
    async with Fleet(store) as made:
        yield made


async def test_a_worker_has_one_client_for_all_tenants(fleet: Fleet) -> None:
    fake = FakeBackend()
    fake.on("true")
    await fleet.worker("w1", fake)
    _, tenants = await fleet.coordinator()
    for tenant in [f"tenant-{number}" for number in range(5)]:
        request = ExecuteRequest(thread_id="same", command="true")
        sandboxes = tenants.of(tenant)
        result = await sandboxes.execute(request)
        (found,) = (await sandboxes.sessions()).sessions
        assert (found.session_id, result.generation) == (result.session_id, 1)
        events = [event async for event in sandboxes.stream(request)]
        assert events[0].session_id == result.session_id  # type: ignore[union-attr]
    assert len(fleet.clients) == 1


async def test_files_and_connections_are_those_of_the_tenant(fleet: Fleet) -> None:
    await fleet.worker("w1", FakeBackend())
    sandboxes = (await fleet.coordinator())[1].of("acme")
    here = Target(thread_id="t")
    await sandboxes.create_session(CreateSessionRequest(thread_id="t"))
    await sandboxes.upload_file(here, "a", piece(b"x"))
    async with sandboxes.download_file(here, "a") as download:
        assert [chunk async for chunk in download.chunks] == [b"x"]
    with pytest.raises(NotListening):  # By the session that is there.
        async with sandboxes.connect(ConnectRequest(thread_id="t", port=80)):
            pass


async def test_a_client_that_nobody_uses_is_closed(fleet: Fleet) -> None:
    router, _ = await fleet.coordinator()
    gone, busy, new = [Worker(id=n, url=f"http://127.0.0.1:{free_port()}") for n in "abc"]
    with router.client(gone), router.client(busy):
        pass
    with router.client(busy):
        fleet.now += 1000
        with router.client(new):
            assert repr(router) == "<Router to 2 workers>"
        async with asyncio.timeout(10):
            while not fleet.clients[0].closed:
                await asyncio.sleep(0.01)
        assert [client.closed for client in fleet.clients] == [True, False, False]
    await router.close()
    assert all(client.closed for client in fleet.clients)


async def test_a_list_of_sessions_names_the_workers_that_are_missing(fleet: Fleet) -> None:
    fake = FakeBackend()
    await fleet.worker("well", fake)
    await fleet.card("dead", f"http://127.0.0.1:{free_port()}")
    await fleet.card("away", "http://127.0.0.1:1", lease_s=0.001)
    sandboxes = await fleet.sandboxes()
    session = await fake.create_session(NEW)
    await asyncio.sleep(0.01)
    found = await sandboxes.sessions()
    assert [each.session_id for each in found.sessions] == [session.session_id]
    assert found.unreachable == ["away", "dead"]


class Unable(FakeBackend):
    """Not able at first, as one whose registry has just been started anew."""

    refusals = 2

    async def _create_session(self, request: CreateSessionRequest) -> Session:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeUnavailable("not yet; try again", retry_after_s=30)
        return await super()._create_session(request)


async def test_a_worker_that_is_not_able_yet_is_waited_for(fleet: Fleet) -> None:
    await fleet.worker("w1", Unable())
    sandboxes = await fleet.sandboxes()
    assert (await sandboxes.create_session(NEW)).status == "created"


async def test_a_worker_that_is_never_able_is_not_called_full(fleet: Fleet) -> None:
    never = Unable()
    never.refusals = 10_000
    await fleet.worker("w1", never)
    _, tenants = await fleet.coordinator(patience_s=0.2)
    with pytest.raises(RuntimeUnavailable, match="not yet"):
        await tenants.of(SOLE_TENANT).create_session(NEW)


async def test_an_able_worker_is_preferred(fleet: Fleet) -> None:
    never = Unable()
    never.refusals = 10_000
    await fleet.worker("unable", never, capacity=1000)
    await fleet.worker("able", FakeBackend())
    sandboxes = await fleet.sandboxes()
    for _ in range(3):
        assert (await sandboxes.create_session(NEW)).status == "created"


async def test_whether_a_worker_is_full_is_for_itself_to_say(fleet: Fleet) -> None:
    """What it said with its last heartbeat may be over."""
    fake = FakeBackend(capacity=1)
    await fleet.worker("w1", fake, capacity=1, sessions=1)
    sandboxes = await fleet.sandboxes()
    session = await sandboxes.create_session(NEW)
    with pytest.raises(Capacity):
        await sandboxes.create_session(NEW)
    await fake.cleanup(Target(session_id=session.session_id))
    assert (await sandboxes.create_session(NEW)).status == "created"


async def test_a_session_goes_to_a_worker_that_has_its_provider(fleet: Fleet) -> None:
    await fleet.worker("w1", FakeBackend(providers=["docker"]), providers=("docker",))
    both = ("bubblewrap", "docker")
    await fleet.worker("w2", FakeBackend(providers=both, capacity=2), providers=both, capacity=2)
    await fleet.worker("older", FakeBackend(providers=["docker"]), capacity=1000)
    _, tenants = await fleet.coordinator()
    sandboxes = tenants.of(SOLE_TENANT)
    for name in ("bubblewrap", "bubblewrap", "docker", "docker"):
        made = await sandboxes.create_session(CreateSessionRequest(provider=name))
        assert made.runtime == name
    assert set((await tenants.health()).providers) == {"docker", "bubblewrap"}
    with pytest.raises(Capacity):
        await sandboxes.create_session(CreateSessionRequest(provider="bubblewrap"))


async def test_a_provider_that_no_worker_has(fleet: Fleet) -> None:
    sandboxes = (await fleet.coordinator(patience_s=0.2))[1].of(SOLE_TENANT)
    with pytest.raises(RuntimeUnavailable):  # Nobody is there who could know.
        await sandboxes.create_session(CreateSessionRequest(provider="e2b"))
    await fleet.worker("w1", FakeBackend(providers=["docker"]), providers=("docker",))
    await fleet.card("away", "http://127.0.0.1:1", lease_s=0.001, providers=("bubblewrap",))
    await asyncio.sleep(0.05)  # What the coordinator knows of its workers is so old.
    with pytest.raises(InvalidRequest, match=r"agent-sandbox\[e2b\].*there is") as told:
        await sandboxes.create_session(CreateSessionRequest(provider="e2b"))
    assert set(told.value.details["providers"]) == {"docker", "bubblewrap"}
    with pytest.raises(RuntimeUnavailable):  # It may come back.
        await sandboxes.create_session(CreateSessionRequest(provider="bubblewrap"))


async def test_a_new_fleet_takes_threads_without_a_name_at_once(state_dir: Path) -> None:
    """Nobody can have had them before. Others wait until it is known who has what."""
    async with (
        make_runtime(default_runtime(), state_dir) as runtime,
        routed_stand(runtime, state_dir, settled=False, patience_s=0.3) as stand,
        RemoteBackend(stand.coordinator_url, retry_for_s=0) as client,
        httpx.AsyncClient(base_url=stand.coordinator_url) as http,
    ):
        session = await client.create_session(NEW)
        assert (session.status, session.thread_id) == ("created", session.session_id)
        answer = await http.post("/create_session", json={"thread_id": "named"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "runtime_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
