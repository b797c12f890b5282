"""What clients do beyond passing calls on."""

import asyncio
import gc
import io
import os
import tarfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox_sdk import (
    AsyncBatchSandboxClient,
    AsyncSandboxClient,
    BatchSandboxClient,
    CommandFailed,
    InvalidRequest,
    InvalidThreadId,
    LocalBackend,
    NotFound,
    OutputEvent,
    SandboxClient,
    SessionNotFound,
    StdinClosed,
)
from sandbox_sdk.background import background
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.protocol.models import LimitOptions
from sandbox_sdk.testing import FakeBackend
from tests.sdk.conftest import Home

PATIENCE_S = 30.0

pytestmark = pytest.mark.usefixtures("home")


# Whose sandbox


def test_a_client_without_a_thread_has_a_session_of_its_own_and_ends_it() -> None:
    with SandboxClient("looks-on") as other:
        with SandboxClient() as sandbox:
            assert sandbox.session().commands == 0
            sandbox.execute("echo x > file")
            (seen,) = other.sessions().sessions
            assert seen.thread_id == sandbox.thread_id
        assert other.sessions().sessions == []


def test_a_client_with_a_thread_only_leaves() -> None:
    with SandboxClient("kept") as sandbox:
        sandbox.write_text("file", "here")
        session_id = sandbox.session().session_id
    with SandboxClient("kept") as again:
        assert again.read_text("file") == "here"
    with SandboxClient(session_id=session_id) as by_session:
        assert by_session.read_text("file") == "here"
        assert by_session.restart().generation == 2
        assert not by_session.exists("file")


def test_options_of_a_live_session_are_told_and_survive_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SandboxClient("kept", backend=FakeBackend()) as sandbox:
        sandbox.create_session(environment="node", idle_timeout_s=60)
        assert sandbox.create_session(environment="go").not_applied == ["environment"]
        assert "thread kept has a live session, made without this environment" in caplog.text
        again = sandbox.restart(env={"A": "1"})
        assert (again.generation, again.environment) == (2, "node")
        assert (again.expires_at - again.created_at).total_seconds() < 61
        assert sandbox.create_session(env={"A": "1"}).not_applied == []


def test_a_client_makes_its_sandbox_with_its_options(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeBackend(providers=["docker", "bubblewrap"], most={"memory": "2g"})
    fake.on("true")
    limits: LimitOptions = {"memory": "2g", "command_timeout_s": "1m"}
    for thread in ("conv", None):
        with SandboxClient(
            thread, backend=fake, provider="bubblewrap", environment="node", limits=limits
        ) as sandbox:
            if thread:
                with pytest.raises(SessionNotFound):
                    sandbox.session()
            for generation in (1, 2, 3):
                sandbox.execute("true")
                session = sandbox.session()
                told = (session.generation, session.runtime, session.environment)
                assert told == (generation, "bubblewrap", "node")
                assert session.limits.memory_bytes == 2 << 30
                assert session.limits.command_timeout_s == 60
                if generation == 1:
                    sandbox.cleanup()
                else:
                    sandbox.restart()
    assert caplog.text == ""
    with SandboxClient("conv", backend=fake, limits={"memory": "1g"}, provider="docker") as other:
        other.execute("true")
    assert "made without this provider, limits.memory" in caplog.text


def test_options_that_cannot_be() -> None:
    fake = FakeBackend()
    with pytest.raises(InvalidRequest, match="a session_id names a session that exists"):
        SandboxClient(session_id="s", backend=fake, limits={"memory": "1g"})
    with pytest.raises(InvalidRequest, match=r"limits\.memory: '1x' is not a size"):
        SandboxClient(backend=fake, limits={"memory": "1x"})
    with pytest.raises(InvalidRequest, match=r"limits\.ram: there is no such field"):
        SandboxClient(backend=fake, limits={"ram": "1g"})  # type: ignore[arg-type]


def test_closing_without_with() -> None:
    with SandboxClient("looks-on") as other:
        sandbox = SandboxClient()
        assert "not yet used" in repr(sandbox)
        assert sandbox.execute("echo hi").output == "hi\n"
        assert "open" in repr(sandbox)
        sandbox.close()
        sandbox.close()
        assert other.sessions().sessions == []
        with pytest.raises(RuntimeError, match="closed"):
            sandbox.execute("echo hi")


def test_a_client_that_nobody_holds_is_closed() -> None:
    """It ends its sandbox too, and a process or a stream of it counts as holding it."""
    with SandboxClient("looks-on") as other:
        sandbox = SandboxClient()
        process = sandbox.start("sleep 60")
        events = process.stream()
        next(events)
        gone = weakref.ref(sandbox)
        del sandbox, process
        gc.collect()
        assert gone() is not None
        assert len(other.sessions().sessions) == 1
        events.close()
        del events
        gc.collect()
        assert gone() is None
        deadline = time.monotonic() + PATIENCE_S
        while other.sessions().sessions:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_clients_that_nobody_holds_are_not_kept() -> None:
    with SandboxClient("looks-on") as other:
        before = repr(background())
        for _ in range(5):
            SandboxClient("t").execute("true")
            SandboxTools().dispatch("bash", {"command": "true"}, thread_id="t")
        gc.collect()
        assert repr(background()) == before
        other.execute("true")


def test_variables_of_a_session_of_its_own() -> None:
    with SandboxClient() as sandbox:
        assert sandbox.create_session(env={"NAME": "me"}).status == "created"
        assert sandbox.execute("echo $NAME").output == "me\n"
        assert sandbox.create_session().status == "existing"


def test_what_a_server_would_refuse_is_refused() -> None:
    with pytest.raises(InvalidThreadId):
        SandboxClient("no spaces")
    with pytest.raises(InvalidRequest):
        SandboxClient("both", session_id="both")
    with pytest.raises(ValueError, match="one or the other"):
        SandboxClient("t", backend=LocalBackend(), server_url="http://127.0.0.1:8000")
    with SandboxClient("t") as sandbox, pytest.raises(InvalidRequest, match="timeout"):
        sandbox.execute("true", timeout=-1)


# Commands


def test_check() -> None:
    with SandboxClient("check") as sandbox:
        assert sandbox.execute("exit 3").exit_code == 3
        with pytest.raises(CommandFailed, match="exit code 3: oh no") as failed:
            sandbox.execute("echo oh no >&2; exit 3", check=True)
        assert failed.value.result.exit_code == 3
        assert sandbox.execute("true", check=True)["exit_code"] == 0


def test_leaving_a_stream_early() -> None:
    with SandboxClient("stream") as sandbox:
        events = sandbox.stream("echo first; sleep 60", timeout=60)
        first = next(event for event in events if isinstance(event, OutputEvent))
        assert first.data == "first\n"
        events.close()
        (running,) = sandbox.session().running
        sandbox.process(running.command_id).kill()


def test_a_process() -> None:
    with SandboxClient("process") as sandbox:
        process = sandbox.start("while read line; do echo got $line; done", stdin_open=True)
        process.send_stdin("one\n")
        process.send_stdin(b"two\n")
        with pytest.raises(TimeoutError):
            process.wait(timeout=0.01)
        again = sandbox.process(process.command_id)
        assert again.result().exit_code is None
        again.send_stdin("three\n")
        again.close_stdin()
        result = process.wait(timeout=PATIENCE_S)
        assert (result.exit_code, result.output) == (0, "got one\ngot two\ngot three\n")
        assert again.output() == result.output
        assert [info.running for info in sandbox.commands().commands] == [False]
        with pytest.raises(StdinClosed):
            process.send_stdin("more")
        with pytest.raises(NotFound):
            sandbox.process("nobody")


def test_killing_a_process() -> None:
    with SandboxClient("kill") as sandbox:
        process = sandbox.start("echo up; sleep 600")
        events = process.stream()
        assert next(event.data for event in events if isinstance(event, OutputEvent)) == "up\n"
        process.kill()
        process.kill()
        assert process.wait(timeout=PATIENCE_S).exit_code == 137
        events.close()


def test_a_batch() -> None:
    with BatchSandboxClient() as sandbox:
        results = sandbox.execute_batch(["x=1", "exit 4", "echo $x"])
        assert [(r.exit_code, r.output) for r in results] == [(0, ""), (4, ""), (0, "1\n")]
        stopped = sandbox.execute_batch(["echo a", "exit 4", "echo b"], stop_on_error=True)
        assert [r.exit_code for r in stopped] == [0, 4]
        commands = [f"touch {i}; until [ -e 0 -a -e 1 -a -e 2 ]; do sleep 0.05; done; echo {i}"
                    for i in range(3)]  # fmt: skip
        at_once = sandbox.execute_batch(commands, parallel=True, timeout=PATIENCE_S)
        assert [r.output for r in at_once] == ["0\n", "1\n", "2\n"]
        with pytest.raises(ValueError, match="choose one"):
            sandbox.execute_batch(["true"], parallel=True, stop_on_error=True)
        with pytest.raises(InvalidRequest):
            sandbox.execute_batch(["", "true"], parallel=True)


async def test_a_batch_in_an_event_loop() -> None:
    async with AsyncBatchSandboxClient() as sandbox:
        results = await sandbox.execute_batch(["x=1", "echo $x"])
        assert [r.output for r in results] == ["", "1\n"]


# Files


def test_files_between_disk_and_sandbox(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "big.bin").write_bytes(data)
    with SandboxClient("disk") as sandbox:
        assert sandbox.upload_file(tmp_path / "big.bin").path == "/workspace/big.bin"
        assert sandbox.upload_file(tmp_path / "big.bin", "in/copy").path == "/workspace/in/copy"
        copy = sandbox.download_file("in/copy", tmp_path / "copy.bin")
        assert copy.read_bytes() == data
        assert copy.stat().st_mode & 0o777 == 0o666 & ~umask()
        into = tmp_path / "into"
        into.mkdir()
        assert sandbox.download_file("/workspace/in/copy", into) == into / "copy"
        packed = sandbox.download_file("in", into)
        assert packed == into / "in.tar"
        with tarfile.open(packed) as tar:
            (name,) = [member.name for member in tar.getmembers() if member.isfile()]
        assert name.endswith("copy")
        with tarfile.open(fileobj=io.BytesIO(sandbox.download_bytes("in"))) as tar:
            assert len(tar.getmembers()) >= 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.bin", "copy.bin", "into"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_text_and_existence() -> None:
    with SandboxClient("text") as sandbox:
        assert not sandbox.exists("notes/today.txt")
        sandbox.write_text("notes/today.txt", "grüße")
        assert sandbox.read_text("notes/today.txt") == "grüße"
        assert sandbox.exists("notes/today.txt")
        assert sandbox.exists("notes")


# Loops and threads


def test_many_threads_share_a_client() -> None:
    """They arrive at once, before there is a service, a loop or a session."""
    together = threading.Barrier(64)

    def work(number: int) -> str:
        together.wait()
        return sandbox.execute(f"echo {number}", timeout=60).output

    with SandboxClient() as sandbox, ThreadPoolExecutor(64) as threads:
        outputs = list(threads.map(work, range(64)))
        assert outputs == [f"{number}\n" for number in range(64)]
        assert sandbox.session().commands == 64


def test_in_asyncio_run() -> None:
    async def main(number: int) -> str:
        async with AsyncSandboxClient("looped") as sandbox:
            return (await sandbox.execute(f"echo {number}")).output

    # Each of these is another event loop; the service must not mind.
    assert [asyncio.run(main(number)) for number in range(3)] == ["0\n", "1\n", "2\n"]


async def test_both_clients_in_a_running_loop() -> None:
    """As in a notebook: the loop runs, and somebody calls the synchronous client all the same."""
    async with AsyncSandboxClient("both") as one:
        await one.execute("x=1")
        with SandboxClient("both") as other:
            assert other.execute("echo $x").output == "1\n"
            assert [e.event for e in other.stream("echo hi")] == ["start", "stdout", "exit"]
        assert [e.event async for e in one.stream("echo hi")] == ["start", "stdout", "exit"]


async def test_a_cancelled_call_leaves_the_command_running() -> None:
    async with AsyncSandboxClient("cancelled") as sandbox:
        await sandbox.execute("true")
        call = asyncio.create_task(sandbox.execute("sleep 0.5; touch done", timeout=60))
        while not (await sandbox.session()).running:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        waiting = "until [ -e done ]; do sleep 0.05; done; echo done"
        assert (await sandbox.execute(waiting)).output == "done\n"


async def test_a_stream_that_is_given_up() -> None:
    """While it waits for the next event, which is longer in coming than anybody's patience."""

    async def follow(sandbox: AsyncSandboxClient) -> None:
        async for event in sandbox.stream("echo a; sleep 60", timeout=90):
            if isinstance(event, OutputEvent):
                came.set()

    for _ in range(10):
        came = asyncio.Event()
        async with AsyncSandboxClient("given-up") as sandbox:
            following = asyncio.create_task(follow(sandbox))
            await came.wait()
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            (running,) = (await sandbox.session()).running
            await (await sandbox.process(running.command_id)).kill()


async def test_a_client_that_is_cancelled_cleans_up() -> None:
    started = asyncio.Event()

    async def work() -> None:
        async with AsyncSandboxClient() as sandbox:
            await sandbox.execute("true")
            started.set()
            await sandbox.execute("sleep 60", timeout=90)

    async with AsyncSandboxClient("looks-on") as other:
        working = asyncio.create_task(work())
        await started.wait()
        assert len((await other.sessions()).sessions) == 1
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await other.sessions()).sessions == []


# The local service


def test_clients_of_a_process_share_the_service_and_the_last_stops_it(home: Home) -> None:
    with SandboxClient("one") as one:
        with SandboxClient("two") as two:
            assert one.health().worker_id == two.health().worker_id
            two.execute("true")
        assert [s.thread_id for s in one.sessions().sessions] == ["two"]
        assert one.health().pool_size <= 2
        assert list(home.folder.glob("*.sock"))
    assert not list(home.folder.glob("*.sock"))
    assert len(home.boxes()) == 1, "warm boxes are not kept, those of threads are"


def test_settings_that_make_other_boxes_make_another_service() -> None:
    small, large = LocalBackend(memory_limit="256m"), LocalBackend(memory_limit="300m")
    with SandboxClient("same", backend=small) as one, SandboxClient("same", backend=large) as two:
        assert one.create_session().limits.memory_bytes == 256 << 20
        assert two.create_session().limits.memory_bytes == 300 << 20
        one.cleanup()
        two.cleanup()


def test_a_service_that_cannot_start_says_why() -> None:
    backend = LocalBackend(memory_limit="nonsense")
    for _ in range(2):
        with (
            pytest.raises(InvalidRequest, match="memory_limit: 'non"),
            SandboxClient(backend=backend),
        ):
            pass
    with SandboxClient("nobody") as sandbox, pytest.raises(SessionNotFound):
        sandbox.cleanup()
