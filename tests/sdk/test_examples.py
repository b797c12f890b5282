"""The examples in docstrings, with sandboxes on this machine."""

import asyncio
import doctest

import pytest

import sandbox_sdk
from sandbox_sdk import batch, client, sync
from sandbox_sdk.testing import FakeBackend, backend

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
