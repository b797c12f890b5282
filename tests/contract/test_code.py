"""Code on Jupyter kernels, over every way to a sandbox, and what hostile code does to them."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.events import (
    CodeErrorEvent,
    EndEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    CodeResult,
    ContextTarget,
    CreateContextRequest,
    CreateSessionRequest,
    ExecuteRequest,
    FollowCodeRequest,
    RunCodeRequest,
    SessionLimits,
    Target,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.registry.environments import Kernels
from tests import kernels
from tests.fleet.redis_server import redis_program
from tests.server_process import running
from tests.waiting import until_true

from .clients import through_client
from .conftest import RUNTIMES, make_runtime
from .stand import lone_standing, open_stand, routed_stand, served

pytestmark = pytest.mark.timeout(kernels.BUILD_S)
FASTEST = [name for name in ("bubblewrap", "docker") if name in RUNTIMES][:1]
BOXES = [name for name in ("bubblewrap", "docker") if name in RUNTIMES]
WAYS = [
    *((way, name) for name in FASTEST for way in ("http", "service", "async", "sync")),
    *(("routed", name) for name in FASTEST if redis_program()),
    *(("http", name) for name in BOXES[1:]),
]
THREAD = Target(thread_id="t")


@contextlib.asynccontextmanager
async def stands(
    way: str, runtime_name: str, state_dir: Path, *, environment: str = "Data", **more: Any
) -> AsyncIterator[Sandboxes]:
    """more: what boxes have besides."""
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(make_runtime(runtime_name, state_dir))
        spec = replace(await kernels.spec_of(environment, runtime), **more)
        if way == "routed":
            routed = await stack.enter_async_context(routed_stand(runtime, state_dir, spec=spec))
            url = routed.coordinator_url
        else:
            standing = await stack.enter_async_context(lone_standing())
            stand = await stack.enter_async_context(open_stand(runtime, standing, spec=spec))
            if way == "service":
                yield stand.sandboxes
                return
            url = await stack.enter_async_context(served(stand.service))
        backend: Sandboxes = await stack.enter_async_context(RemoteBackend(url, retry_for_s=4))
        if way in ("async", "sync"):
            backend = await stack.enter_async_context(through_client(way, backend))
        yield backend


async def run(sandboxes: Sandboxes, code: str, **options: Any) -> CodeResult:
    return await sandboxes.run_code(RunCodeRequest(thread_id="t", code=code, **options))


async def context(sandboxes: Sandboxes, operation: Any, context_id: str) -> Any:
    request = ContextTarget(thread_id="t", context_id=context_id)
    return await sandboxes.call(operation, request)


@pytest.mark.parametrize(("reached", "runtime_name"), WAYS)
async def test_code(
    reached: str, runtime_name: str, state_dir: Path, subtests: pytest.Subtests
) -> None:
    async with stands(reached, runtime_name, state_dir) as sandboxes:
        with subtests.test("the first run makes a context, and the session"):
            first = await run(sandboxes, "import sys\nx = 20\nprint('out'); x + 1")
            assert (first.text, first.stdout, first.error) == ("21", "out\n", None)
            assert (first.context_id, first.context_state) == ("python", "created")
            assert (first.session_state, first.execution_count) == ("created", 1)
            assert (first.artifacts, first.truncated, first.generation) == ([], False, 1)
        with subtests.test("variables stay"):
            again = await run(sandboxes, "print('err', file=sys.stderr)\nx += 1\nx")
            assert (again.text, again.stderr, again.context_state) == ("21", "err\n", "live")
            assert (again.execution_count, again.session_state) == (2, "live")
        with subtests.test("an exception is a result"):
            failed = await run(sandboxes, "def f():\n    return 1 / 0\nf()")
            assert failed.error is not None
            assert failed.error.name == "ZeroDivisionError"
            assert any("line 2, in f" in line for line in failed.error.traceback)
            assert not any("\x1b" in line for line in failed.error.traceback)
            assert (await run(sandboxes, "x")).text == "21"
        await _contexts(sandboxes, subtests)
        await _once(sandboxes, subtests)
        await _events(sandboxes, subtests)
        await _bash(sandboxes, subtests)
        with subtests.test("variables of one run"):
            code = "import os; os.environ.get('A')"
            assert (await run(sandboxes, code, env={"A": "it's"})).text == '"it\'s"'
            assert (await run(sandboxes, code)).text is None
        await _artifacts(sandboxes, subtests)
        with subtests.test("no kernel"), pytest.raises(errors.KernelMissing, match="irkernel"):
            await run(sandboxes, "1", language="r")
        with subtests.test("its commands are told apart"):
            commands = (await sandboxes.commands(THREAD)).commands
            assert commands[0].is_code
            assert not any(command.running for command in commands)


async def _contexts(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    with subtests.test("two contexts"):
        request = CreateContextRequest(thread_id="t", context_id="two", cwd="/tmp")
        made = await sandboxes.call(op.CREATE_CONTEXT, request)
        assert (made.context_id, made.language, made.cwd) == ("two", "python", "/tmp")
        here = await run(sandboxes, "import os; x = 'two'; os.getcwd()", context_id="two")
        assert (here.text, here.context_id) == ("'/tmp'", "two")
        assert (await run(sandboxes, "x")).text == "21"
        found = (await sandboxes.contexts(THREAD)).contexts
        assert [(c.context_id, c.default, c.state) for c in found] == [
            ("python", True, "idle"),
            ("two", False, "idle"),
        ]
        assert all((c.memory_bytes or 0) > 10 << 20 for c in found)
    with subtests.test("interrupted"):
        running = asyncio.create_task(
            run(sandboxes, "import time; y = 1; time.sleep(60)", context_id="two")
        )
        await until_true(lambda: _is_busy(sandboxes, "two"))
        await context(sandboxes, op.INTERRUPT_CONTEXT, "two")
        ended = await running
        assert (ended.reason, ended.context_state) == ("interrupted", "live")
        assert ended.error is not None
        assert ended.error.name == "KeyboardInterrupt"
        assert (await run(sandboxes, "y", context_id="two")).text == "1"
    with subtests.test("timeout"):
        late = await run(sandboxes, "time.sleep(60)", context_id="two", timeout=0.3)
        assert (late.timed_out, late.reason, late.context_state) == (True, "timeout", "live")
        assert (await run(sandboxes, "y", context_id="two")).text == "1"
    with subtests.test("interrupted before the kernel has begun"):
        for timeout in (0.001, 0.003, 0.005):
            env = {"A": "b"} if timeout == 0.003 else {}
            late = await run(
                sandboxes, "time.sleep(60)", context_id="two", timeout=timeout, env=env
            )
            assert (late.reason, late.context_state) == ("timeout", "live")
            assert late.error is not None
            assert late.error.name == "KeyboardInterrupt"
        after = await run(sandboxes, "y, os.environ.get('A')", context_id="two")
        assert after.text == "(1, None)"
    with subtests.test("awaited"):
        code = "import asyncio\nz = await asyncio.sleep(0.01, 'slept')\nz"
        assert (await run(sandboxes, code, context_id="two")).text == "'slept'"
        for timeout in (0.001, 0.3):
            late = await run(
                sandboxes, "await asyncio.sleep(60)", context_id="two", timeout=timeout
            )
            assert (late.reason, late.context_state) == ("timeout", "live")
        code = "await asyncio.sleep(0, 'again'), z"
        assert (await run(sandboxes, code, context_id="two")).text == "('again', 'slept')"
    with subtests.test("restarted and removed"):
        await context(sandboxes, op.RESTART_CONTEXT, "two")
        gone = await run(sandboxes, "y", context_id="two")
        assert gone.error is not None
        assert gone.error.name == "NameError"
        await context(sandboxes, op.REMOVE_CONTEXT, "two")
        with pytest.raises(errors.ContextNotFound):
            await run(sandboxes, "1", context_id="two")
    with subtests.test("the language of another context"), pytest.raises(errors.InvalidRequest):
        await run(sandboxes, "1", context_id="python", language="javascript")


async def _is_busy(sandboxes: Sandboxes, context_id: str) -> bool:
    found = (await sandboxes.contexts(THREAD)).contexts
    return any(c.context_id == context_id and c.state == "busy" for c in found)


async def _is_there(sandboxes: Sandboxes, name: str) -> bool:
    return any(entry.name == name for entry in (await sandboxes.list_files(THREAD)).entries)


async def _once(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    with subtests.test("once with a key"):
        await run(sandboxes, "n = 0")
        first = await run(sandboxes, "n += 1; n", idempotency_key="k")
        again = await run(sandboxes, "n += 1; n", idempotency_key="k")
        assert (first.text, again.text) == ("1", "1")
        assert (first.replayed, again.replayed) == (False, True)
        with pytest.raises(errors.IdempotencyMismatch):
            await run(sandboxes, "n += 2", idempotency_key="k")


async def _events(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    code = "print('one')\ndisplay('shown')\nprint('two', flush=True)\n1 / 0"
    with subtests.test("events"):
        request = RunCodeRequest(thread_id="t", code=code)
        events = [event async for event in sandboxes.stream_code(request)]
        assert isinstance(events[0], StartEvent)
        assert isinstance(events[-1], EndEvent)
        kinds = [event.event for event in events[1:-1]]
        assert kinds == ["stdout", "result", "stdout", "error"]
        assert isinstance(events[-2], CodeErrorEvent)
        assert events[-1].command_id == events[0].command_id
    with subtests.test("followed from the middle"):
        if type(sandboxes).__name__ == "ThroughClient":
            return  # Clients have no method for it: their own streams go on by themselves.
        assert isinstance(events[-1], EndEvent)
        shown = next(event for event in events if isinstance(event, ResultEvent))
        follow = FollowCodeRequest(
            thread_id="t", command_id=events[-1].command_id, offset=shown.next_offset
        )
        rest = [event async for event in sandboxes.stream_code(follow)]
        assert [event.event for event in rest] == ["start", "stdout", "error", "end"]
        assert isinstance(rest[1], OutputEvent)
        assert rest[1].data == "two\n"


async def _bash(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    with subtests.test("bash is the shell of the session"):
        await sandboxes.execute(ExecuteRequest(thread_id="t", command="kept=1"))
        result = await run(sandboxes, "echo $kept; exit 3", language="bash")
        assert (result.stdout, result.context_id) == ("1\n", "bash")
        assert result.error is not None
        assert result.error.value == "3"
        with pytest.raises(errors.CommandRejected):
            await run(sandboxes, "rm -rf /", language="bash")


async def _artifacts(sandboxes: Sandboxes, subtests: pytest.Subtests) -> None:
    with subtests.test("the files that it makes are kept"):
        code = "open('a.csv', 'w').write('1'); open('.b', 'w').write('2')"
        made = await run(sandboxes, code)
        assert [artifact.path for artifact in made.artifacts] == ["/workspace/a.csv"]
        marked = await run(sandboxes, "!save_artifact .b", artifacts=False)
        assert [artifact.path for artifact in marked.artifacts] == ["/workspace/.b"]
        by_bash = await run(sandboxes, "echo 4 > c.txt", language="bash")
        assert [artifact.path for artifact in by_bash.artifacts] == ["/workspace/c.txt"]
        none = await run(sandboxes, "open('a.csv', 'w').write('3')", artifacts=False)
        assert none.artifacts == []
        kept = (await sandboxes.artifacts(thread_id="t")).artifacts
        assert [each.path for each in kept] == [
            f"/workspace/{name}" for name in ("c.txt", ".b", "a.csv")
        ]
    with subtests.test("and so is its source"):
        log = (await sandboxes.stored_session(made.session_id)).log
        assert (code, 0) in [(command.command, command.exit_code) for command in log]


@pytest.mark.rest
@pytest.mark.parametrize("runtime_name", BOXES)
async def test_javascript(runtime_name: str, state_dir: Path, subtests: pytest.Subtests) -> None:
    async with stands("http", runtime_name, state_dir, environment="Node") as sandboxes:
        with subtests.test("variables, output and values"):
            first = await run(sandboxes, "var x = 20; console.log('one')", language="javascript")
            assert (first.stdout, first.error, first.context_id) == ("one\n", None, "javascript")
            then = await run(sandboxes, "({ x: x + 1 })", language="javascript")
            assert then.text == "{ x: 21 }", "without colours"
        with subtests.test("what is printed belongs to its run"):
            for number in range(50):
                code = f"console.log({number})"
                result = await run(sandboxes, code, language="javascript")
                assert (result.stdout, result.late_output) == (f"{number}\n", "")
        with subtests.test("types, and a file"):
            code = "const y: number = 2; Deno.writeTextFileSync('made.txt', 'x'); y"
            typed = await run(sandboxes, code, language="typescript")
            assert (typed.text, typed.context_id) == ("2", "typescript")
            assert [artifact.path for artifact in typed.artifacts] == ["/workspace/made.txt"]
        with subtests.test("an exception"):
            failed = await run(sandboxes, "throw new TypeError('no')", language="javascript")
            assert failed.error is not None
            assert (failed.error.name, failed.error.value) == ("TypeError", "no")
        with subtests.test("no kernel for Python"), pytest.raises(errors.KernelMissing):
            await run(sandboxes, "1")


TABLE = "import pandas as pd; pd.DataFrame({'a': [1, 2]})"
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2, 3]); plt.show()"
WIDE = "from IPython.display import display, Image; display(Image(data=b'\\x89PNG' + b'x' * 6000000, format='png'))"  # noqa: E501
LATE = """
import threading, time
def write():
    time.sleep(0.2); print('late', flush=True); open('written', 'w').close()
thread = threading.Thread(target=write); thread.start()
"""


@pytest.mark.parametrize("runtime_name", BOXES)
async def test_what_code_does_to_its_kernel(
    runtime_name: str, state_dir: Path, subtests: pytest.Subtests
) -> None:
    async with stands("http", runtime_name, state_dir) as sandboxes:
        with subtests.test("tables are HTML and text"):
            table = await run(sandboxes, TABLE, timeout=60)
            assert table.main_result is not None
            assert "<table" in (table.main_result.html or "")
            assert table.main_result.type == "text/html"
            assert "<iframe sandbox" in table._repr_html_()
        with subtests.test("charts are images"):
            chart = await run(sandboxes, PLOT, timeout=90)
            assert (chart.png or b"").startswith(b"\x89PNG"), chart.error
            assert chart.results[0].type == "image/png"
        with subtests.test("10 MB of output are cut, with a notice"):
            large = await run(sandboxes, "print('x' * 10_000_000); print('end')")
            assert large.truncated
            assert large.output_bytes == 10_000_005
            assert 900_000 < len(large.stdout) < 1_100_000
            assert "bytes of output left out]" in large.stdout
            assert large.stdout.endswith("end\n")
        with subtests.test("an image that is too large is a notice"):
            image = await run(sandboxes, WIDE)
            assert image.png is None
            assert "left out: image/png" in (image.results[0].text or "")
        with subtests.test("results of more than the credit of a channel"):
            long = await run(sandboxes, "for i in range(1, 6): display('x' * (500_000 + i))")
            assert [len(each.text or "") for each in long.results] == [
                500_002 + i for i in range(1, 6)
            ]
        with subtests.test("more results than are kept"):
            many = await run(sandboxes, "for i in range(3000): display(i)", timeout=60)
            assert many.truncated
            assert "2800 more results left out" in (many.results[-1].text or "")
        with subtests.test("bytes that are not UTF-8, of a subprocess too"):
            odd = await run(sandboxes, "import os; os.write(1, b'\\xff\\n'); os.system('echo sub')")
            assert odd.stdout == "\ufffd\nsub\n"
        with subtests.test("characters of a subprocess stay whole"):
            text = "é" * 5000
            whole = await run(sandboxes, f"os.system('printf x{text}')")
            assert whole.stdout == f"x{text}"
        with subtests.test("nobody can be asked"):
            asked = await run(sandboxes, "input('name? ')")
            assert asked.error is not None
            assert asked.error.name == "StdinNotImplementedError"
        with subtests.test("what a thread writes after the end comes with the next run"):
            await run(sandboxes, LATE)
            await until_true(lambda: _is_there(sandboxes, "written"))
            later = await run(sandboxes, "thread.join(); print('now')")
            assert "late" in later.late_output + later.stdout
            assert later.stdout.endswith("now\n")
        with subtests.test("a fork"):
            forked = await run(sandboxes, "pid = os.fork()\nif pid == 0: os._exit(0)\nos.wait()[1]")
            assert forked.text == "0"
        with subtests.test("an interrupt that is ignored ends with the kernel"):
            code = "import signal; signal.signal(2, signal.SIG_IGN); time.sleep(60)"
            ended = await run(sandboxes, code, timeout=0.5)
            assert (ended.reason, ended.context_state) == ("timeout", "lost")
        await _lost(sandboxes, subtests, runtime_name)


async def _lost(sandboxes: Sandboxes, subtests: pytest.Subtests, runtime_name: str) -> None:
    with subtests.test("a lost default context is restarted, and that is told"):
        assert (await run(sandboxes, "import os, time; 1")).context_state == "restarted"
        died = await run(sandboxes, "print('before', flush=True); time.sleep(0.2); os._exit(3)")
        assert (died.reason, died.context_state, died.stdout) == ("exited", "lost", "before\n")
        assert died.error is not None
        assert died.error.name == "ContextLost"
    with subtests.test("a lost context with a name is an error until it is restarted"):
        request = CreateContextRequest(thread_id="t", context_id="named")
        await sandboxes.call(op.CREATE_CONTEXT, request)
        await run(sandboxes, "import os; os.kill(os.getpid(), 9)", context_id="named")
        with pytest.raises(errors.ContextLost, match="restart it"):
            await run(sandboxes, "1", context_id="named")
        await context(sandboxes, op.RESTART_CONTEXT, "named")
        assert (await run(sandboxes, "1 + 1", context_id="named")).text == "2"
    with subtests.test("memory"):
        hungry = await run(sandboxes, "b = bytearray(2 << 30)\nb[::4096] = b[::4096]", timeout=60)
        assert hungry.reason == "oom" or (hungry.error and hungry.error.name == "MemoryError")
        assert (await run(sandboxes, "1 + 1", timeout=60)).text == "2"
    with subtests.test("descriptors closed"):
        closed = await run(sandboxes, "import os; os.closerange(3, 4096)", timeout=1)
        assert closed.context_state in ("live", "lost")
        assert (await run(sandboxes, "1 + 1", timeout=60)).text in ("2", None)
        await context(sandboxes, op.RESTART_CONTEXT, "python")
    with subtests.test("the bridge killed in the middle of a run"):
        running = asyncio.create_task(run(sandboxes, "import time; time.sleep(60)", timeout=90))
        await until_true(lambda: _is_busy(sandboxes, "python"))
        kill = ExecuteRequest(thread_id="t", command="pkill -9 -f sandbox_warden.kernel_bridge")
        await sandboxes.execute(kill)
        ended = await running
        assert ended.error is not None
        assert (ended.error.name, ended.context_state) == ("ContextLost", "lost")
        states = {c.context_id: c.state for c in (await sandboxes.contexts(THREAD)).contexts}
        assert states == {"python": "lost", "named": "lost"}
        with pytest.raises(errors.ContextLost):
            await run(sandboxes, "1", context_id="named")
        assert (await run(sandboxes, "1 + 1")).context_state == "restarted"
    with subtests.test("and no kernel outlives it"):
        ps = ExecuteRequest(thread_id="t", command="pgrep -fc '[k]ernel-.*json' || true")
        assert int((await sandboxes.execute(ps)).output) <= 1


@pytest.mark.parametrize("runtime_name", FASTEST)
async def test_a_bridge_does_not_keep_a_session(runtime_name: str, state_dir: Path) -> None:
    """One that does nothing does not; a run does."""
    async with stands("service", runtime_name, state_dir) as sandboxes:
        made = CreateSessionRequest(thread_id="t", idle_timeout_s=1.0)
        await sandboxes.create_session(made)
        result = await run(sandboxes, "import time; time.sleep(2); 1")
        assert (result.text, result.session_state) == ("1", "live")
        listed = await sandboxes.commands(THREAD)
        assert [command.is_code for command in listed.commands] == [True]

        async def expired() -> bool:
            return not (await sandboxes.sessions()).sessions

        await until_true(expired)
        again = await run(sandboxes, "1")
        assert (again.session_state, again.context_state) == ("recreated", "created")


@pytest.mark.parametrize("runtime_name", FASTEST)
async def test_a_kernel_that_was_started_with_its_box(runtime_name: str, state_dir: Path) -> None:
    """It has the variables of the session, which came later, and its time limit."""
    warm = Kernels(warm=("python",))
    async with stands("service", runtime_name, state_dir, kernels=warm) as sandboxes:
        limits = SessionLimits(command_timeout_s=1)
        made = CreateSessionRequest(thread_id="t", env={"A": "1"}, limits=limits)
        await sandboxes.create_session(made)
        (context,) = (await sandboxes.contexts(THREAD)).contexts
        assert (context.context_id, context.default) == ("python", True)
        assert (await sandboxes.commands(THREAD)).commands[0].is_code is False, "the variables"
        first = await run(sandboxes, "import os; os.environ['A']")
        assert (first.text, first.context_state, first.execution_count) == ("'1'", "created", 1)
        assert (await run(sandboxes, "import time; time.sleep(60)")).timed_out


@pytest.mark.rest
@pytest.mark.skipif("docker" not in RUNTIMES, reason="its boxes need an image with kernels")
async def test_a_run_outlives_the_server(state_dir: Path) -> None:
    key = uuid.uuid4().hex
    code = "x = 7; import time; print('begun', flush=True); time.sleep(3); x"
    async with make_runtime("docker", state_dir) as runtime:
        image = (await kernels.spec_of("Python3", runtime)).image
    async with running("docker", state_dir, SANDBOX_IMAGE=image) as server:
        await server.ready()
        async with RemoteBackend(server.url, retry_for_s=60) as sandboxes:
            request = RunCodeRequest(thread_id="t", code=code, idempotency_key=key)
            seen: list[str] = []
            async for event in sandboxes.stream_code(request):
                seen.append(event.event)
                if isinstance(event, OutputEvent):
                    await server.stop()
                    await server.start()
            assert seen == ["start", "stdout", "result", "end"]
            again = await sandboxes.run_code(request)
            assert (again.text, again.replayed) == ("7", True)
            assert (await run(sandboxes, "x + 1")).text == "8"
            assert json.loads(again.model_dump_json())["stdout"] == "begun\n"
