"""Every behaviour of a box, on every runtime this machine can offer."""

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.runtime.disk_pool import DiskPool, open_pool
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from tests.contract.e2b_door import open_door
from tests.contract.on_kubernetes import PODS, pods_for
from tests.contract.processes_server import ProcessesServer
from tests.contract.stand import (
    Way,
    fleet_way,
    make_runtime,
    sandboxes,
    stand,
    ways,
    with_checkpoints,
    with_disks,
)
from tests.contract.without_e2b import on_e2b
from tests.run import run_owner

__all__ = ["make_runtime", "sandboxes", "stand"]

RUNTIMES = [name for name in os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",") if name]

MakeBox = Callable[..., Awaitable[WardenBox]]


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    further = [
        *(["e2b"] if on_e2b(metafunc, RUNTIMES) else []),
        *pods_for(metafunc),
    ]
    if "runtime_name" in metafunc.fixturenames and further:
        names = pytest.mark.parametrize("runtime_name", [*RUNTIMES, *further], indirect=True)
        metafunc.definition.add_marker(names)  # In place of the parameters of the fixture.
    if "way" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        found = (
            fleet_way(RUNTIMES)
            if "one_way" in marks
            else ways(
                RUNTIMES,
                wire="wire" in marks,
                bash=bool(marks & {"wire", "bash"}),
                inside="inside" in marks,
            )
        )
        if "checkpoints" in marks and "one_way" not in marks:
            found = with_checkpoints(RUNTIMES, found)
        if "history" in marks:
            found = with_disks(found)
        if "one_way" not in marks and on_e2b(metafunc, RUNTIMES):
            found = [*([] if "only_e2b" in marks else found), Way("e2b", "http")]
        if not marks & {"one_way", "only_e2b", "history"}:
            found = [*found, *(Way(pods, "http") for pods in pods_for(metafunc))]
        metafunc.parametrize("way", found, ids=str)


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Embedded boxes run as users of their own, who must be able to pass through.
    path = tmp_path_factory.mktemp("state")
    for folder in (path, *path.parents):
        if folder.is_relative_to(tmp_path_factory.getbasetemp().parent):
            folder.chmod(0o711)
    return path


@pytest.fixture
def folder(state_dir: Path) -> Path:
    """A state folder of the test's own: keys, for one, are those of every server of a folder."""
    made = state_dir / uuid.uuid4().hex[:8]
    made.mkdir(mode=0o711)
    return made


@pytest.fixture(scope="session")
def e2b_door(state_dir: Path) -> Iterator[None]:
    with open_door(state_dir / "door"):
        yield


@pytest.fixture(scope="session")
def processes_server(state_dir: Path) -> Iterator[ProcessesServer]:
    """Started once: that takes longer than most tests."""
    with ProcessesServer(state_dir, count=2) as server:
        yield server


@pytest.fixture(scope="session")
def disk_pool(state_dir: Path) -> Iterator[DiskPool]:
    """For disks that can be copied at no cost."""
    with open_pool(state_dir) as pool:
        if pool.no_copies:
            pytest.skip(f"copies of disks: {pool.no_copies}")
        yield pool


@pytest.fixture(params=RUNTIMES)
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def runtime(
    runtime_name: str, state_dir: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Runtime]:
    if runtime_name == "e2b":
        request.getfixturevalue("e2b_door")
    async with make_runtime(runtime_name, state_dir) as made:
        yield made


_SERVED = [name for name in RUNTIMES if name != "gvisor"]


@pytest.fixture(params=_SERVED)
async def building_runtime(
    request: pytest.FixtureRequest, state_dir: Path
) -> AsyncIterator[Runtime]:
    """Of those one that can put packages into a box: pods have what is in their image."""
    async with make_runtime(str(request.param), state_dir) as made:
        yield made


@pytest.fixture(params=[*_SERVED, *PODS])
async def server_runtime(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[Runtime]:
    """For what does not depend on what happens inside a box: gVisor is docker to a server."""
    async with make_runtime(str(request.param), state_dir) as made:
        yield made


@pytest.fixture
async def make_box(runtime: Runtime) -> AsyncIterator[MakeBox]:
    """Makes boxes and destroys them after the test."""
    async with AsyncExitStack() as stack:

        async def make(**changes: object) -> WardenBox:
            spec = replace(BoxSpec(owner=run_owner("contract"), deadman_s=300), **changes)  # type: ignore[arg-type]
            box = await runtime.create(spec)
            stack.push_async_callback(box.destroy)
            return cast("WardenBox", box)  # Or one that has all of it that its tests use.

        yield make


@pytest.fixture
async def box(make_box: MakeBox) -> WardenBox:
    return await make_box()


@pytest.fixture
async def warden(box: WardenBox) -> AsyncIterator[WardenClient]:
    async with box.agent() as client:
        yield client
