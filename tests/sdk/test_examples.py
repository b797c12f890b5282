"""The examples in docstrings and in the SDK's own page, with sandboxes on this machine."""

import asyncio
import doctest
from pathlib import Path

import pytest

import sandbox_sdk
from sandbox_sdk import batch, client, sync
from sandbox_sdk.testing import FakeBackend, backend
from tests.docs.blocks import run_blocks

NAMES = {
    **{name: getattr(sandbox_sdk, name) for name in sandbox_sdk.__all__},
    "FakeBackend": FakeBackend,
    "asyncio": asyncio,
}
EXAMPLES = [
    test
    for module in (client, sync, batch, backend)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=NAMES)
    if test.examples
]


def test_there_are_examples() -> None:
    classes = {test.name.rpartition(".")[2] for test in EXAMPLES}
    assert classes == {"AsyncSandboxClient", "SandboxClient", "BatchSandboxClient", "FakeBackend"}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("test", EXAMPLES, ids=lambda test: test.name)
def test_an_example(test: doctest.DocTest) -> None:
    told: list[str] = []
    doctest.DocTestRunner().run(test, out=told.append)
    assert told == []


@pytest.mark.usefixtures("home")
def test_the_page_about_the_sdk(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "sdk.md"
    assert run_blocks(page, url="", folder=tmp_path, env={}, languages=("python",)) >= 4
