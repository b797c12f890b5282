"""e2b's code interpreter, unchanged, on kernels of our boxes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from sandbox_server.api.app import create_app
from sandbox_server.api.e2b import E2bDoor
from tests.contract.stand import lone_standing, make_runtime, open_stand
from tests.e2b.conftest import WAYS
from tests.e2b.servers import Served
from tests.kernels import BUILD_S, spec_of
from tests.server_process import served as serving

pytestmark = pytest.mark.timeout(BUILD_S)
RUNTIMES = [way.runtime for way in WAYS if way.name == "standalone"]


@contextlib.asynccontextmanager
async def _with_kernels(runtime_name: str, state_dir: Path) -> AsyncIterator[Served]:
    async with make_runtime(runtime_name, state_dir) as runtime, lone_standing() as standing:
        spec = await spec_of("Data", runtime)
        async with open_stand(runtime, standing, spec=spec, named="base") as stand:
            door = E2bDoor(lambda: b"a secret of the test")
            async with serving(create_app(stand.service, e2b=door)) as url:
                yield Served([url])


@pytest.fixture(scope="module", params=RUNTIMES)
def options(
    request: pytest.FixtureRequest, portal: BlockingPortal, state_dir: Path
) -> Iterator[dict[str, Any]]:
    with portal.wrap_async_context_manager(_with_kernels(request.param, state_dir)) as served:
        yield served.options()


@pytest.fixture(scope="module")
def box(options: dict[str, Any]) -> Iterator[Sandbox]:
    made = Sandbox.create("base", timeout=600, **options)
    yield made
    made.kill()


def test_variables_stay(box: Sandbox) -> None:
    assert box.run_code("x = 20").error is None
    done = box.run_code("print('printed'); x + 1")
    assert (done.text, done.logs.stdout) == ("21", ["printed\n"])
    assert done.execution_count


def test_a_server_without_previews_names_no_host_of_others(box: Sandbox) -> None:
    assert box.get_host(8080) == f"8080-{box.sandbox_id}.no-previews.invalid"


def test_errors(box: Sandbox) -> None:
    error = box.run_code("1/0").error
    assert error is not None
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "Traceback" in error.traceback


def test_output_as_it_comes(box: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    box.run_code(
        "import sys\nprint('1')\nprint('2', file=sys.stderr)",
        on_stdout=lambda message: out.append(message.line),
        on_stderr=lambda message: err.append(message.line),
    )
    assert ("".join(out), "".join(err)) == ("1\n", "2\n")


def test_pictures(box: Sandbox) -> None:
    done = box.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert any(result.png for result in done.results)


def test_files_are_where_code_is(box: Sandbox) -> None:
    box.files.write("data.csv", "a,b\n1,2\n")
    assert box.run_code("open('data.csv').read()").text == repr("a,b\n1,2\n")


def test_variables_of_a_run(box: Sandbox) -> None:
    assert box.run_code("import os; os.environ['A']", envs={"A": "7"}).text == "'7'"


def test_bash(box: Sandbox) -> None:
    assert box.run_code("echo $((6*7))", language="bash").logs.stdout == ["42\n"]


def test_contexts(box: Sandbox) -> None:
    made = box.create_code_context(cwd="/tmp")
    assert (made.language, made.cwd) == ("python", "/tmp")
    assert made.id in [each.id for each in box.list_code_contexts()]
    box.run_code("y = 1", context=made)
    assert box.run_code("y", context=made).text == "1"
    error = box.run_code("y").error
    assert error is not None
    box.restart_code_context(made)
    error = box.run_code("y", context=made).error
    assert error is not None
    box.remove_code_context(made)
    with pytest.raises(NotFoundException):
        box.remove_code_context(made)
    with pytest.raises(SandboxException):
        box.run_code("1", context=made)


def test_a_run_whose_caller_leaves_is_interrupted(box: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        box.run_code("import time\nz = 1\ntime.sleep(10_000)", timeout=2)
    assert box.run_code("z").text == "1"


def test_the_asynchronous_half(options: dict[str, Any]) -> None:
    async def run() -> str:
        box = await AsyncSandbox.create("base", timeout=60, **options)
        try:
            context = await box.create_code_context()
            await box.run_code("x = 1", context=context)
            return str((await box.run_code("x + 1", context=context)).text)
        finally:
            await box.kill()

    assert asyncio.run(run()) == "2"
