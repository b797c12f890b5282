"""Every row of the error table, provoked over HTTP in a server with real boxes."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import ErrorAnswer
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.limits import ApiLimits
from sandbox_server.checkpoints.checkpoints import Checkpoints
from sandbox_server.environments.builds import Builds
from sandbox_server.environments.catalogue import Catalogue, pooled
from sandbox_server.environments.layers import LayerStore
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.source import PooledEnvironment
from sandbox_server.registry.environments import Environment, Packages
from sandbox_server.runtime.base import BoxSpec, Limits, Runtime
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.storage.objects import FolderObjects
from sandbox_server.volumes.volumes import Volumes
from sandbox_server.worker import Worker
from tests.contract.conftest import building_runtime, state_dir
from tests.contract.stand import LIMITS
from tests.run import run_owner
from tests.server_process import served

__all__ = ["building_runtime", "state_dir"]

MIB = 1 << 20
CAPACITY = 2
RUN = {"thread_id": "t", "command": "echo"}

NOT_FROM_A_BOX = {
    "internal": "takes a defect of the server",
    "forbidden": "a web page of another site; in tests/api/test_origin.py",
    "command_rejected": "takes a policy",
    "rate_limited": "takes a limit of calls",
    "stdin_closed": "a command that takes no input; with real boxes in tests/contract",
    "not_listening": "a connection; with real boxes in tests/contract/test_connections.py",
    "unavailable": "the base of other errors",
    "audit_unavailable": "an audit log on a full disk; in tests/integration/test_audit.py",
    "misdirected": "what a worker tells a coordinator",
    "kernel_failed": "a kernel that does not start; with real ones in tests/contract/test_code.py",
    "context_lost": "a kernel that was killed; with real ones in tests/contract/test_code.py",
}
"""Shown over HTTP in tests/api/test_errors.py, with sandboxes that raise them."""


class Place:
    """A server, and what only its operator can do to it."""

    def __init__(
        self, http: httpx.AsyncClient, worker: Worker, state_dir: Path, checkpoints: Path
    ) -> None:
        self.checkpoints = checkpoints
        self.http = http
        self.worker = worker
        self.state_dir = state_dir

    async def execute(self, **changes: object) -> httpx.Response:
        return await self.http.post("/execute", json={**RUN, **changes})

    async def upload(self, size: int) -> httpx.Response:
        target = {"thread_id": "t", "path": "f"}
        return await self.http.post("/upload_file", params=target, files={"file": bytes(size)})

    async def lose_box(self) -> None:
        await asyncio.gather(*(s.box.destroy() for s in self.worker.table.sessions()))


OWN = Catalogue(
    [
        Environment(name="slow", packages=Packages(pip=("ipykernel",))),
        Environment(name="failing", setup=("echo oh; exit 3",)),
    ]
)


async def without_image(spec: BoxSpec) -> BoxSpec:
    return replace(spec, image="no-such-image:latest")


@pytest.fixture
async def place(building_runtime: Runtime, state_dir: Path) -> AsyncIterator[Place]:
    owner = run_owner(f"errors-{uuid.uuid4().hex[:8]}")
    folder = state_dir / f"{owner}.checkpoints"
    builds = Builds(building_runtime, LayerStore(state_dir, "any"), wait_s=0.1)
    volumes = Volumes.open(state_dir / f"{owner}.volumes", size=16 * MIB, quota=32 * MIB)
    worker = Worker(
        building_runtime,
        BoxSpec(owner=owner, deadman_s=300, limits=Limits(disk_bytes=16 * MIB)),
        SqliteRegistry(worker=owner),
        LoneLease(owner, 1),
        pool=PoolSettings(size=0, min_size=0, max_size=0),
        environments=lambda: {
            "broken": PooledEnvironment(declared="broken", ready=without_image),
            **pooled(OWN, builds)(),
        },
        idle_timeout_s=600,
        capacity=CAPACITY,
        destroy_on_exit=True,
        checkpoints=Checkpoints(FolderObjects(folder), quota=MIB, retention_s=600),
        volumes=volumes,
    )
    limits = LIMITS.model_copy(update={"upload_limit_bytes": 32 * MIB, "disk_bytes": 16 * MIB})
    facts = ServiceFacts(worker_id=owner, runtime=building_runtime.name, limits=limits)
    async with builds, worker:
        service = SandboxService(worker.table, facts, health=worker.health, volumes=volumes)
        app = create_app(
            service,
            keys=ApiKeys.parse("acme:key"),
            limits=ApiLimits(upload_bytes=32 * MIB, body_timeout_s=0.5),
        )
        async with served(app) as url:
            headers = {"X-API-Key": "key"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
                yield Place(http, worker, state_dir, folder)


async def _lost(place: Place) -> httpx.Response:
    session_id = (await place.execute()).json()["session_id"]
    await place.lose_box()
    return await place.http.post("/execute", json={"session_id": session_id, "command": "echo"})


async def _capacity(place: Place) -> httpx.Response:
    for number in range(CAPACITY):
        answer = await place.execute(thread_id=f"t-{number}")
        assert answer.status_code == 200, answer.text
    return await place.execute(thread_id="one-too-many")


async def _mismatch(place: Place) -> httpx.Response:
    await place.execute(idempotency_key="k")
    return await place.execute(idempotency_key="k", command="echo something else")


async def _unavailable(place: Place) -> httpx.Response:
    """A runtime that cannot make boxes: no such image, or no place for embedded ones."""
    boxes = place.state_dir / "boxes"
    away = boxes.with_name("boxes-away")
    if boxes.exists():
        boxes.rename(away)
    boxes.touch()
    try:
        body = {"thread_id": "t", "environment": "broken"}
        return await place.http.post("/create_session", json=body)
    finally:
        boxes.unlink()
        if away.exists():
            away.rename(boxes)


async def _in_environment(place: Place, name: str) -> httpx.Response:
    body = {"thread_id": "t", "environment": name}
    return await place.http.post("/create_session", json=body)


async def _missing(place: Place) -> httpx.Response:
    await place.execute()
    return await place.http.get("/download_file", params={"thread_id": "t", "path": "none"})


async def _no_context(place: Place) -> httpx.Response:
    await place.execute()
    target = {"thread_id": "t", "context_id": "none"}
    return await place.http.post("/contexts/remove", json=target)


async def _slow(place: Place) -> httpx.Response:
    """A body that does not go on: no well-behaved client can send one."""
    url = place.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = "POST /execute HTTP/1.1\r\nHost: x\r\nX-API-Key: key\r\nContent-Length: 9\r\n\r\n{"
    writer.write(head.encode())
    status, _, rest = (await reader.read()).decode().partition("\r\n")
    writer.close()
    fields, _, body = rest.partition("\r\n\r\n")
    headers = [line.split(": ", 1) for line in fields.split("\r\n")]
    return httpx.Response(
        int(status.split()[1]), headers=[(name, value) for name, value in headers], text=body
    )


async def _restored(place: Place, checkpoint_id: str) -> httpx.Response:
    wanted = {"thread_id": "t", "checkpoint_id": checkpoint_id}
    return await place.http.post("/restore", json=wanted)


async def _damaged(place: Place) -> httpx.Response:
    await place.execute()
    made = await place.http.post("/checkpoints", json={"thread_id": "t"})
    for path in place.checkpoints.rglob("segments/*/*"):
        path.unlink()
    return await _restored(place, made.json()["checkpoint_id"])


async def _conflict(place: Place) -> httpx.Response:
    for thread_id in ("t", "other"):
        await place.execute(thread_id=thread_id)
    return await place.http.post("/fork", json={"thread_id": "t", "into": ["other"]})


PROVOKED: dict[str, Callable[[Place], Awaitable[httpx.Response]]] = {
    "invalid_request": lambda place: place.execute(timeout=-1),
    "invalid_thread_id": lambda place: place.execute(thread_id="../x"),
    "invalid_path": lambda place: place.http.get(
        "/list_files", params={"thread_id": "t", "path": "../../etc\0"}
    ),
    "unauthorized": lambda place: place.http.get("/session", headers={"X-API-Key": "wrong"}),
    "not_found": lambda place: place.http.get("/nowhere"),
    "session_not_found": lambda place: place.http.get("/session", params={"thread_id": "none"}),
    "file_not_found": _missing,
    "method_not_allowed": lambda place: place.http.get("/execute"),
    "request_timeout": _slow,
    "idempotency_mismatch": _mismatch,
    "session_lost": _lost,
    "file_too_large": lambda place: place.upload(33 * MIB),
    "disk_full": lambda place: place.upload(24 * MIB),
    "capacity": _capacity,
    "runtime_unavailable": _unavailable,
    "environment_building": lambda place: _in_environment(place, "slow"),
    "environment_failed": lambda place: _in_environment(place, "failing"),
    "no_kernel": lambda place: place.http.post("/run_code", json={"thread_id": "t", "code": "1"}),
    "context_not_found": _no_context,
    "checkpoint_not_found": lambda place: _restored(place, "cp-never-was"),
    "checkpoint_damaged": _damaged,
    "volume_not_found": lambda place: place.http.post("/volume/delete", json={"name": "none"}),
    "conflict": _conflict,
}


def by_code() -> dict[str, type[SandboxError]]:
    found = (cls for cls in vars(errors).values() if isinstance(cls, type))
    return {cls.code: cls for cls in found if issubclass(cls, SandboxError)}


def test_no_code_is_forgotten() -> None:
    assert set(by_code()) == {*PROVOKED, *NOT_FROM_A_BOX}


NAMED = {
    "checkpoint_not_found": ["'cp-never-was'"],
    "checkpoint_damaged": ["a part of it is missing"],
    "volume_not_found": ["no volume 'none'"],
    "conflict": ["'other' has a session"],
    "invalid_request": ["timeout"],
    "invalid_thread_id": ["'../x'", "'/'", "A-Z"],
    "unauthorized": ["api_key=", "SANDBOX_API_KEY"],
    "session_not_found": ["thread 'none'"],
    "file_not_found": ["/workspace/none"],
    "idempotency_mismatch": ["idempotency_key k"],
    "file_too_large": ["f is larger", "SANDBOX_MAX_UPLOAD", "32 MiB"],
    "disk_full": ["/workspace", "/workspace/f", "SANDBOX_DISK_LIMIT", "16 MiB", "delete"],
    "capacity": ["2 of 2 sessions"],
    "environment_building": ["environment slow", "retry in 5 s"],
    "environment_failed": ["`echo oh; exit 3`", "exit code 3", "oh"],
}
"""What the message has in it: the thing, and what to do."""


@pytest.mark.parametrize("code", PROVOKED)
async def test_each_code(place: Place, code: str) -> None:
    answer = await PROVOKED[code](place)
    error = ErrorAnswer.model_validate(answer.json()).error
    assert (error.code, answer.status_code) == (code, by_code()[code].status), answer.text
    assert [each for each in NAMED.get(code, [""]) if each not in error.message] == []
    assert "wrong" not in error.message, "a key is not repeated"
    assert error.request_id == answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))
