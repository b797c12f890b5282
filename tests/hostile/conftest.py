"""Hostile cases: every box is a small one, has a neighbour, and both are looked at afterwards.

What a runtime cannot do here is a line of NOT_APPLICABLE, which a test compares with what the
runtime itself says; what it should do and does not is a line of OPEN, a strict xfail.
Both are in lacks.py.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.runtime.base import BoxSpec, Limits, Runtime
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from tests.contract.conftest import (
    RUNTIMES,
    MakeBox,
    make_box,
    make_runtime,
    runtime,
    runtime_name,
    state_dir,
    warden,
)
from tests.contract.on_kubernetes import PODS, WHOLE
from tests.hostile.lacks import NOT_APPLICABLE, OPEN
from tests.run import run_owner

__all__ = ["NOT_APPLICABLE", "make_box", "runtime", "runtime_name", "state_dir", "warden"]

MIB = 1 << 20
SMALL = Limits(
    memory_bytes=128 * MIB,
    pids=64,
    disk_bytes=64 * MIB,
    open_files=256,
    tmp_bytes=16 * MIB,
    shm_bytes=8 * MIB,
    home_bytes=8 * MIB,
    inodes=2000,
)
"""Every box of these tests: what fills it up does so in a moment."""
SESSION_S = 30.0
NEIGHBOUR_S = 15.0
MAX_GROWTH = 64 * MIB


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runtime_name" in metafunc.fixturenames and PODS and WHOLE:
        names = pytest.mark.parametrize("runtime_name", [*RUNTIMES, *PODS], indirect=True)
        metafunc.definition.add_marker(names)  # In place of the parameters of the fixture.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    away = [item for item in items if item.path.is_relative_to(folder) and not _applies(item)]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in away]
    for item in items:
        if item.path.is_relative_to(folder) and (fault := OPEN.get(_place(item))):
            mark = pytest.mark.xfail(strict=True, reason=fault.reason)
            item.add_marker(mark)


def _place(item: pytest.Item) -> tuple[str, str]:
    """Runtime and name of a test."""
    callspec = getattr(item, "callspec", None)
    name = str(getattr(item, "originalname", item.name))
    return (callspec.params.get("runtime_name", "") if callspec else "", name)


def _applies(item: pytest.Item) -> bool:
    runtime, name = _place(item)
    only_on = {at for (at, _), why in NOT_APPLICABLE.items() if why.instead == name}
    return (runtime, name) not in NOT_APPLICABLE and (not only_on or runtime in only_on)


@pytest.fixture
async def box(make_box: MakeBox) -> WardenBox:
    return await make_box(limits=SMALL)


@pytest.fixture(scope="session")
def neighbours(state_dir: Path) -> Iterator[dict[str, BoxSpec]]:
    """How to find the neighbour of each runtime. They go in the end."""
    found: dict[str, BoxSpec] = {}
    yield found
    asyncio.run(_remove(found, state_dir))


async def _remove(neighbours: dict[str, BoxSpec], state_dir: Path) -> None:
    for name, spec in neighbours.items():
        async with make_runtime(name, state_dir) as runtime:
            await asyncio.gather(*(box.destroy() for box in await runtime.boxes(spec.owner)))


@pytest.fixture
async def neighbour(
    runtime: Runtime, runtime_name: str, neighbours: dict[str, BoxSpec]
) -> AsyncIterator[WardenClient]:
    """Another box, that has to be well whatever the first one does. It lives on to the next case,
    whose neighbour it is then."""
    owner = run_owner(f"neighbour-{runtime_name}-{os.getpid()}")
    spec = neighbours.setdefault(runtime_name, BoxSpec(owner=owner, deadman_s=300, limits=SMALL))
    (box,) = await runtime.boxes(owner) or [await runtime.create(spec)]
    assert isinstance(box, WardenBox)
    async with WardenClient(box) as client:
        yield client


@pytest.fixture(autouse=True)
async def aftermath(
    request: pytest.FixtureRequest,
    warden: WardenClient,
    neighbour: WardenClient,
    record_property: Callable[[str, object], None],
) -> AsyncIterator[None]:
    """What must hold after every case."""
    await answers(warden, SESSION_S)
    record_property("neighbour_before_s", await answers(neighbour, NEIGHBOUR_S))
    memory = own_memory()
    yield
    if _is_lost(request.node):
        with pytest.raises(errors.SessionLost):
            await answers(warden, SESSION_S)
    else:
        await answers(warden, SESSION_S)
    record_property("neighbour_after_s", await answers(neighbour, NEIGHBOUR_S))
    gc.collect()
    assert own_memory() - memory < MAX_GROWTH


def _is_lost(node: pytest.Item) -> bool:
    runtime, name = _place(node)
    here = [why for (at, _), why in NOT_APPLICABLE.items() if at == runtime]
    return any(why.lost and why.instead == name for why in here)


async def answers(warden: WardenClient, within_s: float) -> float:
    """How long a session took to answer. Raises what it raises, and TimeoutError."""
    started = time.monotonic()
    async with asyncio.timeout(within_s):
        result = await warden.run("echo ok")
    assert (result.stdout, result.exit_code) == ("ok\n", 0), result.output
    return time.monotonic() - started


def own_memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def run_python(warden: WardenClient, code: str, *, timeout_s: float = 30.0) -> CommandResult:
    """Run a program in the box, as its user would."""
    return await warden.run("python3 -", stdin=code.encode(), timeout_s=timeout_s)


async def ask_python(warden: WardenClient, code: str) -> Any:
    """What a program in the box prints as JSON."""
    result = await run_python(warden, code)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
