"""e2b's own SDK, unchanged, on servers of ours."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.contract.conftest import RUNTIMES, state_dir
from tests.e2b.servers import Served, Way, sandbox_class, serving, ways

__all__ = ["state_dir"]

WAYS = ways(RUNTIMES)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test over every way with the SDK's synchronous half, and over the fastest with the
    other one too. With the mark `one_way` over the fastest alone."""
    if "way" not in metafunc.fixturenames:
        return
    one = metafunc.definition.get_closest_marker("one_way") is not None
    ways = WAYS[:1] if one else WAYS
    if "sandbox_type" not in metafunc.fixturenames:
        metafunc.parametrize("way", ways, ids=str, scope="session")
        return
    pairs = [(way, kind) for kind in ("sync", "async") for way in ways]
    some = [(way, kind) for way, kind in pairs if kind == "sync" or way == ways[0]]
    ids = [f"{kind}-{way}" for way, kind in some]
    metafunc.parametrize(
        ("way", "sandbox_type"), some, ids=ids, indirect=["sandbox_type"], scope="session"
    )


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as made:
        yield made


@pytest.fixture(scope="session")
def served(way: Way, portal: BlockingPortal, state_dir: Path) -> Iterator[Served]:
    folder = state_dir / str(way)
    folder.mkdir(mode=0o711, exist_ok=True)
    with portal.wrap_async_context_manager(serving(way, folder)) as found:
        yield found


@pytest.fixture(scope="session")
def sandbox_type(request: pytest.FixtureRequest, portal: BlockingPortal) -> Any:
    return sandbox_class(request.param, portal)


@pytest.fixture
def options(served: Served) -> dict[str, Any]:
    return served.options()


@pytest.fixture
def made(options: dict[str, Any], portal: BlockingPortal) -> Iterator[list[str]]:
    """The ids of sandboxes that go after the test."""
    ids: list[str] = []
    yield ids
    kill = sandbox_class("sync", portal).kill
    for sandbox_id in ids:
        with contextlib.suppress(Exception):
            kill(sandbox_id, **options)


@pytest.fixture
def box(sandbox_type: Any, options: dict[str, Any], made: list[str]) -> Any:
    """A sandbox of the test's own."""
    found = sandbox_type.create(timeout=300, **options)
    made.append(found.sandbox_id)
    return found
