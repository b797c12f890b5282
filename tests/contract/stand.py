"""A whole server for a test, and the ways to reach it."""

import asyncio
import contextlib
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import pytest
import uvicorn

from sandbox_sdk import LocalBackend, RemoteBackend, Sandboxes
from sandbox_sdk.backends.remote import RemoteTenants
from sandbox_sdk.protocol.models import LimitOptions, Limits, SessionLimits, Target, checked
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_sdk.testing import FakeBackend
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import SOLE_TENANT, ApiKeys
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.server import bound, server_config, url_of
from sandbox_server.checkpoints.checkpoints import Checkpoints
from sandbox_server.checkpoints.opening import StoreSettings, open_checkpoints, open_points
from sandbox_server.checkpoints.points import Points
from sandbox_server.fleet import workers
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.router import Router
from sandbox_server.fleet.routing import RoutedTenants
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.stored import RedisHistory
from sandbox_server.main import Standing
from sandbox_server.network.networks import Networks
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import PooledEnvironment
from sandbox_server.previews.opening import PreviewsOnDemand
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.disk_pool import DiskPool
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.rules import SessionRules
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.storage.history import Kept
from sandbox_server.storage.storage import Storage, StorageLimits, open_storage
from sandbox_server.volumes.binding import BindFolders
from sandbox_server.volumes.volumes import Volumes
from sandbox_server.worker import Worker
from tests.contract.clients import through_client
from tests.contract.e2b_door import E2bDoor
from tests.contract.on_kubernetes import cluster_runtime
from tests.contract.processes_server import ProcessesServer
from tests.contract.scripted import write_script
from tests.fleet.redis_server import RedisServer, redis_program, up_for_long
from tests.run import run_owner
from tests.s3_server import S3Server

LIMITS = Limits(
    memory_bytes=512 << 20,
    cpus=0.5,
    pids=256,
    disk_bytes=1 << 30,
    command_timeout_s=30,
    output_limit_bytes=1 << 20,
    upload_limit_bytes=8 << 20,
    network="none",
)

STORED = StorageLimits(
    history=Kept(retention_s=3600, sessions=100, commands=20),
    artifact_quota=4 << 20,
    artifact_retention_s=3600,
)

CHECKPOINTS = StoreSettings(where="folder", quota=64 << 20, retention_s=3600)

VOLUME_SIZE = 32 << 20
VOLUME_QUOTA = 128 << 20
"""Of every stand."""

MOST: LimitOptions = {"memory": "1g", "cpus": 2.0, "pids": 512, "disk": "2g"}
"""What a session can ask for, of every stand."""
CAPACITY = 3
NO_FOLDERS = Path("/nonexistent")
LEASE_S = 9.0
_FASTEST_FIRST = ("bubblewrap", "docker")


@dataclass(frozen=True)
class Way:
    """A way to reach sandboxes on a runtime."""

    runtime: str
    name: str
    store: str = "folder"
    """Where checkpoints are kept."""

    def __str__(self) -> str:
        return f"{self.name}-{self.runtime}" + (f"-{self.store}" if self.store != "folder" else "")


def fleet_way(runtimes: list[str]) -> list[Way]:
    """One that has everything between a client and a box: what is true of any way is tried once."""
    servers = [name for name in _FASTEST_FIRST if name in runtimes]
    return [Way(runtime, "routed") for runtime in servers[:1] if redis_program()]


def ways(runtimes: list[str], *, wire: bool, bash: bool, inside: bool) -> list[Way]:
    """The ways a test is run over: every way on the fastest runtime, and over HTTP on the others.
    A client goes through the service in-process or over HTTP, so with clients these are no ways of
    their own; both kinds of client and both backends are tried once. What happens inside a box does
    not matter here, so gVisor is left out. What is about the wire itself does not concern clients,
    what needs a shell not the fake, and what looks inside the server needs one in the loop of the
    test."""
    servers = sorted((name for name in runtimes if name != "gvisor"), key=_FASTEST_FIRST.index)
    found = [Way(runtime, "http") for runtime in servers[1:]]
    for fastest in servers[:1]:
        names = ["service", "http"] if wire else ["sync-local", "async-remote"]
        names += ["routed"] if redis_program() else []
        if fastest == "bubblewrap" and not inside:
            names.append("processes")
        found += [Way(fastest, name) for name in names]
    return found if bash else [*found, Way("memory", "fake")]


def with_checkpoints(runtimes: list[str], found: list[Way]) -> list[Way]:
    """Files are read and written inside a box, so gVisor matters, there are two stores, and disks
    that can be copied."""
    inside = [Way("gvisor", "http")] if "gvisor" in runtimes else []
    over_http = [way for way in found if way.name in ("http", "async-remote")]
    fastest = next((name for name in _FASTEST_FIRST if name in runtimes), "")
    with_s3 = [replace(way, store="s3") for way in over_http if way.runtime == fastest]
    with_disks = [replace(way, store="disks") for way in over_http]
    return found + inside + with_s3 + with_disks


def with_disks(found: list[Way]) -> list[Way]:
    """On disks that can be copied; servers that are started as users do have them anyhow."""
    real = [way for way in found if way.name != "fake"]
    own = ("processes", "async-local", "sync-local")
    return [way if way.name in own else replace(way, store="disks") for way in real]


class Place(Protocol):
    """Where the sandboxes of a test are: what callers cannot do to it, the test can."""

    capacity: int

    async def lose_box(self, thread_id: str) -> None:
        """What happens when an engine removes a box, or its machine dies."""


class Stand:
    """A server in the loop of the test."""

    capacity = CAPACITY

    def __init__(self, worker: Worker, service: SandboxService, folders: Path = NO_FOLDERS) -> None:
        """folders: below it are those that sessions may have, `ro` and `rw`."""
        self.folders = folders
        self.worker = worker
        self.service = service
        self.sandboxes = service.of(SOLE_TENANT)

    async def lose_box(self, thread_id: str) -> None:
        (session,) = [s for s in self.worker.table.sessions() if s.record.thread_id == thread_id]
        await session.box.destroy()


async def _as_it_is(spec: BoxSpec) -> BoxSpec:
    return spec


_USUAL = PooledEnvironment(declared="as it is", ready=_as_it_is)


@contextlib.asynccontextmanager
async def open_stand(
    runtime: Runtime,
    standing: Standing,
    *,
    limits: Limits = LIMITS,
    declared: LiveRegistry | None = None,
    spec: BoxSpec | None = None,
    checkpoints_in: str = "folder",
    images: Path | None = None,
    networks: Networks | None = None,
    named: str | None = None,
) -> AsyncIterator[Stand]:
    """named: an environment whose boxes are the usual ones."""
    registry, lease = standing
    store = replace(CHECKPOINTS, where=checkpoints_in)
    spec = replace(spec or BoxSpec(owner=""), owner=lease.worker, deadman_s=300)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_storage(Path(folder), lease.worker, STORED, history=registry.history) as storage,
            open_checkpoints(store, Path(folder) / "checkpoints", images=images) as checkpoints,
            _open_points(images) as points,
            _open_stand(
                runtime,
                standing,
                storage,
                limits,
                declared,
                spec,
                checkpoints,
                points,
                Path(folder),
                networks,
                named,
            ) as stand,
        ):
            yield stand


def _open_points(images: Path | None) -> contextlib.AbstractAsyncContextManager[Points]:
    return open_points(
        None if images is None else images.with_name(f"{images.name}.points"),
        why_not="disks cannot be copied",
        most_bytes=64 << 20,
        retention_s=3600,
    )


@contextlib.asynccontextmanager
async def _open_stand(
    runtime: Runtime,
    standing: Standing,
    storage: Storage,
    limits: Limits,
    declared: LiveRegistry | None,
    spec: BoxSpec,
    checkpoints: Checkpoints | None,
    points: Points,
    storage_folder: Path,
    networks: Networks | None = None,
    named: str | None = None,
) -> AsyncIterator[Stand]:
    registry, lease = standing
    bound = [f"{storage_folder}/folders/{mode}:{mode}" for mode in ("ro", "rw")]
    volumes = Volumes.open(
        storage_folder / "volumes",
        size=VOLUME_SIZE,
        quota=VOLUME_QUOTA,
        binds=BindFolders.parse(bound),
    )
    rules = SessionRules(
        default=limits.values(),
        idle_timeout_s=600,
        providers={runtime.name: await runtime.enforcement()},
        most=checked(SessionLimits, **MOST).given(),
        networks=networks,
    )
    worker = Worker(
        runtime,
        spec,
        registry,
        lease,
        pool=PoolSettings(size=0, min_size=0, max_size=0),
        environments=lambda: {} if named is None else {named: _USUAL},
        idle_timeout_s=600,
        capacity=Stand.capacity,
        destroy_on_exit=True,
        tick_s=0.2,
        rules=rules,
        journal=storage.journal,
        checkpoints=checkpoints,
        points=points,
        volumes=volumes,
        networks=networks,
    )
    async with worker:
        await lease.serve(load=worker.load, on_gap=worker.table.vouch)
        facts = ServiceFacts(worker_id=lease.worker, runtime=runtime.name, limits=limits)
        previews = PreviewsOnDemand()
        service = SandboxService(
            worker.table,
            facts,
            health=worker.health,
            registry=declared,
            storage=storage,
            volumes=volumes,
            previews_at=None if isinstance(registry, RedisRegistry) else previews.site,
        )
        async with previews.of(service):
            yield Stand(worker, service, storage_folder / "folders")


@contextlib.asynccontextmanager
async def lone_standing() -> AsyncIterator[Standing]:
    registry = SqliteRegistry(worker="stand")
    try:
        yield registry, LoneLease(run_owner(f"stand-{uuid.uuid4().hex[:8]}"), 1)
    finally:
        await registry.close()


@contextlib.asynccontextmanager
async def served(
    tenants: Tenants,
    listener: socket.socket | None = None,
    *,
    keys: ApiKeys | None = None,
) -> AsyncIterator[str]:
    """The url of a server on a real socket."""
    config = server_config(create_app(tenants, keys=keys), ApiLimits(), drain_timeout_s=60)
    server = uvicorn.Server(config)
    with listener or bound("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True
            await serving


class RoutedStand(Stand):
    """The same server as one of a fleet, behind a coordinator."""

    def __init__(self, stand: Stand, coordinator_url: str) -> None:
        super().__init__(stand.worker, stand.service, stand.folders)
        self.coordinator_url = coordinator_url


@contextlib.asynccontextmanager
async def routed_stand(
    runtime: Runtime,
    state_dir: Path,
    *,
    settled: bool = True,
    patience_s: float = 10,
    spec: BoxSpec | None = None,
    checkpoints_in: str = "folder",
    images: Path | None = None,
) -> AsyncIterator[RoutedStand]:
    """client → coordinator → worker, with a real Redis between them. `settled`: as if that had been
    up for long; a new one is not believed at once."""
    async with contextlib.AsyncExitStack() as stack:
        redis = RedisServer(state_dir / uuid.uuid4().hex[:8])
        await redis.start()
        stack.push_async_callback(redis.stop)
        store = Store.open(redis.url)
        stack.push_async_callback(store.close)
        if settled:
            await up_for_long(store)
        index = SessionIndex(store, lease_s=LEASE_S, grace_s=LEASE_S)
        listener = bound("127.0.0.1", 0)
        name = run_owner(f"stand-{uuid.uuid4().hex[:8]}")
        card = workers.Worker(
            id=name, url=url_of(listener), capacity=CAPACITY, providers=(runtime.name,)
        )
        lease = RedisLease(
            store, card, lease_s=LEASE_S, state_dir=state_dir, stop=lambda: None, leaves=True
        )
        await stack.enter_async_context(lease)
        history = RedisHistory(store, STORED.history)
        standing = RedisRegistry(index, lease, history=history), lease
        stand = await stack.enter_async_context(
            open_stand(runtime, standing, spec=spec, checkpoints_in=checkpoints_in, images=images)
        )
        keys = ApiKeys([], fleet_key="fleet", of_worker=True)
        await stack.enter_async_context(served(stand.service, listener, keys=keys))

        def connect(url: str) -> RemoteTenants:
            return RemoteTenants(url, fleet_key="fleet")

        directory = Directory(index, grace_s=LEASE_S)
        router = await stack.enter_async_context(Router(directory, connect, patience_s=patience_s))
        previews = PreviewsOnDemand()
        routing = RoutedTenants(
            directory,
            router,
            coordinator_id="coordinator",
            history=history,
            previews_at=previews.site,
        )
        await stack.enter_async_context(previews.of(routing))
        yield RoutedStand(stand, await stack.enter_async_context(served(routing)))


class LocalStand:
    """The service of this process, in its background loop."""

    capacity = CAPACITY

    def __init__(self, runtime: Runtime, state_dir: Path) -> None:
        self.backend = LocalBackend(
            runtime="bubblewrap" if runtime.name == "bubblewrap" else "docker",
            state_dir=state_dir,
            max_sessions=CAPACITY,
            max_upload=LIMITS.upload_limit_bytes,
            max_memory=MOST["memory"],
            max_cpus=MOST["cpus"],
            max_pids=MOST["pids"],
            max_disk=MOST["disk"],
            artifact_quota=STORED.artifact_quota,
            volume_size=VOLUME_SIZE,
            volume_quota=VOLUME_QUOTA,
        )
        self._runtime = runtime
        self._state_dir = state_dir

    async def lose_box(self, thread_id: str) -> None:
        (path,) = self._state_dir.glob("local-*.sqlite")
        registry = SqliteRegistry(path)
        record = await registry.newest(SOLE_TENANT, thread_id)
        await registry.close()
        assert record is not None
        boxes = await self._runtime.boxes(path.stem)
        (box,) = [box for box in boxes if box.id == record.box_id]
        await box.destroy()


class ProcessesStand:
    """A server of several processes. It serves many tests, each with a tenant of its own."""

    capacity = CAPACITY

    def __init__(self, server: ProcessesServer, number: int, runtime: Runtime) -> None:
        self.url = server.url
        self.tenant = f"tenant-{number}"
        self.key = f"key-{number}"
        self._server = server
        self._runtime = runtime

    async def lose_box(self, thread_id: str) -> None:
        registry = SqliteRegistry(self._server.state_dir / f"{self._server.name}.sqlite")
        record = await registry.newest(self.tenant, thread_id)
        await registry.close()
        assert record is not None
        boxes = await self._runtime.boxes(record.worker)
        (box,) = [box for box in boxes if box.id == record.box_id]
        await box.destroy()


class FakeStand:
    capacity = CAPACITY

    def __init__(self) -> None:
        limit = LIMITS.upload_limit_bytes
        self.backend = FakeBackend(capacity=CAPACITY, upload_limit=limit, most=MOST)
        write_script(self.backend)

    async def lose_box(self, thread_id: str) -> None:
        self.backend.lose(thread_id)


@pytest.fixture
async def stand(way: Way, state_dir: Path, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if way.name == "fake":
        yield FakeStand()
        return
    where = way.store
    if where == "s3":
        server: S3Server = request.getfixturevalue("s3")
        request.getfixturevalue("s3_credentials")
        where = server.url_of(uuid.uuid4().hex[:8])
    disks = images = None
    if way.runtime == "e2b":
        request.getfixturevalue("e2b_door")
    if where == "disks":
        pool: DiskPool = request.getfixturevalue("disk_pool")
        where, disks, images = "folder", pool.folder, pool.images / uuid.uuid4().hex[:8]
    async with make_runtime(way.runtime, state_dir, disks=disks) as runtime:
        if way.name.endswith("local"):
            async with local_stand(runtime, state_dir / uuid.uuid4().hex[:8]) as made:
                yield made
        elif way.name == "processes":
            processes: ProcessesServer = request.getfixturevalue("processes_server")
            async with processes_stand(processes, runtime) as several:
                yield several
        elif way.name == "routed":
            async with routed_stand(
                runtime, state_dir, checkpoints_in=where, images=images
            ) as routed:
                yield routed
        else:
            async with (
                lone_standing() as standing,
                open_stand(runtime, standing, checkpoints_in=where, images=images) as opened,
            ):
                yield opened


@contextlib.asynccontextmanager
async def local_stand(runtime: Runtime, state_dir: Path) -> AsyncIterator[LocalStand]:
    """Leaves no session, as a user's program would."""
    if runtime.name == "bubblewrap":
        runtime = make_runtime("bubblewrap", state_dir)
    stand = LocalStand(runtime, state_dir)
    async with stand.backend:
        yield stand
        for session in (await stand.backend.sessions()).sessions:
            await stand.backend.cleanup(Target(session_id=session.session_id))


@contextlib.asynccontextmanager
async def processes_stand(
    server: ProcessesServer, runtime: Runtime
) -> AsyncIterator[ProcessesStand]:
    """Leaves no session: the next test needs the room."""
    stand = ProcessesStand(server, server.next_tenant(), runtime)
    try:
        yield stand
    finally:
        async with RemoteBackend(stand.url, api_key=stand.key) as backend:
            for session in (await backend.sessions()).sessions:
                await backend.cleanup(Target(session_id=session.session_id))


@pytest.fixture
async def sandboxes(way: Way, stand: Place) -> AsyncIterator[Sandboxes]:
    client, _, where = way.name.partition("-")
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(stand, Stand):
            if way.name == "service":
                yield stand.sandboxes
                return
            if isinstance(stand, RoutedStand):
                url = stand.coordinator_url
            else:
                url = await stack.enter_async_context(served(stand.service))
            backend: Sandboxes = await stack.enter_async_context(RemoteBackend(url, retry_for_s=4))
        elif isinstance(stand, ProcessesStand):
            remote = RemoteBackend(stand.url, api_key=stand.key, retry_for_s=4)
            backend = await stack.enter_async_context(remote)
        else:
            assert isinstance(stand, LocalStand | FakeStand)
            backend = stand.backend
        if where:
            backend = await stack.enter_async_context(through_client(client, backend))
        yield backend


class KnownMachine(BubblewrapRuntime):
    """Knows from an earlier test what the machine can do: to try it all takes longer than a box."""

    _known: ClassVar[dict[Path, Setup]] = {}

    async def _get_setup(self) -> Setup:
        folder = self._state.path
        self._setup = self._setup or self._known.get(folder)
        self._known[folder] = await super()._get_setup()
        return self._known[folder]


def make_runtime(name: str, state_dir: Path, *, disks: Path | None = None) -> Runtime:
    """disks: for the files behind the disks of boxes."""
    if name == "bubblewrap":
        return KnownMachine(state_dir=state_dir, disks=disks)
    if name == "e2b":
        return E2bDoor.runtime()
    if name in ("kubernetes", "kubernetes_gvisor"):
        return cluster_runtime("gvisor" if name == "kubernetes_gvisor" else None)
    from sandbox_server.runtime.docker import DockerRuntime

    return DockerRuntime(
        engine_runtime="runsc" if name == "gvisor" else None, disk_folder=disks or state_dir
    )
