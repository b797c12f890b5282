"""Whole programs: what they find, what they leave, and how they get on with each other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sdk.conftest import Home

PATIENCE_S = 60.0

TOUR = """
from sandbox_sdk import OutputEvent, SandboxClient

with SandboxClient() as sandbox:
    print(sandbox.execute("cd /tmp; x=4; whoami").output, end="")
    print(sandbox.execute("echo $PWD $x; exit 3"). exit_code)
    sandbox.write_text("/workspace/in.txt", "one two")
    for event in sandbox.stream("wc -w < /workspace/in.txt"):
        if isinstance(event, OutputEvent):
            print(event.data, end="")
    process = sandbox.start("cat", stdin_open=True)
    process.send_stdin("fed\\n")
    process.close_stdin()
    print(process.wait(60).output, end="")
    print([entry.name for entry in sandbox.list_files().entries])
"""


class Program:
    """A program of its own, whose every warning is an error."""

    def __init__(self, source: str, *args: str, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-u", "-c", source, *args],
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line it prints. Its test ends where none comes."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise AssertionError(self.end()[2])
        return line.strip()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Its exit code and what it has said since."""
        try:
            out, err = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        return self._process.returncode, out, err


@contextmanager
def running(source: str, *args: str) -> Iterator[Program]:
    program = Program(source, *args)
    try:
        yield program
    finally:
        if program._process.poll() is None:
            program._process.kill()
            program._process.communicate()


def run(source: str, *args: str, env: dict[str, str] | None = None) -> str:
    code, out, err = Program(source, *args, env=env).end()
    assert (code, err) == (0, ""), err
    return out


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server in a process of its own, and its url."""
    source = (
        "import asyncio\n"
        "from sandbox_server import logs\n"
        "from sandbox_server.main import serve\n"
        "from sandbox_server.settings import load\n"
        "logs.configure(form='json', level='error')\n"
        "async def tell(url, *_): print(url, flush=True)\n"
        "asyncio.run(serve(load(port=0, pool_size=1, min_pool_size=0, max_pool_size=2,\n"
        f"    worker_id='scripts-{folder.name}', destroy_on_exit=True), on_listening=tell))\n"
    )
    with running(source) as program:
        try:
            yield program.line()
        finally:
            program.send(signal.SIGTERM)
            program.end()


# Here and there


def test_a_program_runs_unchanged_with_and_without_a_server(home: Home) -> None:
    local = run(TOUR)
    with server(home.folder) as url:
        remote = run(TOUR, env={"SANDBOX_URL": url})
    assert local == remote == "sandboxuser\n3\n2\nfed\n['in.txt']\n"
    assert home.boxes() == []


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_the_self_test(home: Home, remote: bool) -> None:
    command = [sys.executable, "-m", "sandbox_sdk", "--test"]
    if not remote:
        tested = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        with server(home.folder) as url:
            env = {**os.environ, "SANDBOX_URL": url}
            tested = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    steps = [line.split()[:2] for line in tested.stdout.splitlines()[:-1]]
    names = ["create", "whoami", "2+2", "upload", "list", "download", "cleanup"]
    assert steps == [["ok", name] for name in names], tested.stderr
    assert (tested.returncode, tested.stderr) == (0, "")


def test_the_self_test_fails_where_nothing_answers(home: Home) -> None:
    command = [sys.executable, "-m", "sandbox_sdk", "--test"]
    env = {**os.environ, "SANDBOX_URL": "http://127.0.0.1:9"}
    tested = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert tested.returncode == 1
    assert tested.stdout.startswith("FAILED  create")
    assert "http://127.0.0.1:9" in tested.stdout


# Again, and side by side

COUNT = """
import sys
from sandbox_sdk import SandboxClient
with SandboxClient("counting") as sandbox:
    print(sandbox.execute("echo x >> log; n=$((n+1)); echo $n $(wc -l < log)").output, end="")
"""

LOOP = """
import sys
from sandbox_sdk import SandboxClient
with SandboxClient("side-by-side") as sandbox:
    for _ in range(int(sys.argv[1])):
        print(sandbox.execute("echo x >> log; wc -l < log").output, end="", flush=True)
        sys.stdin.readline() if len(sys.argv) > 2 else None
"""

STREAM = """
from sandbox_sdk import OutputEvent, SandboxClient
with SandboxClient("streamed") as sandbox:
    command = "for i in $(seq 100); do echo $i; sleep 0.1; done"
    for event in sandbox.stream(command, timeout=300):
        if isinstance(event, OutputEvent):
            print(event.data, end="", flush=True)
"""

HOST = """
import time
from sandbox_sdk import SandboxClient
with SandboxClient("of-the-host") as sandbox:
    sandbox.execute("echo mine > file")
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_program_that_is_run_again_finds_its_files_and_its_shell(home: Home) -> None:
    assert [run(COUNT) for _ in range(3)] == ["1 1\n", "2 2\n", "3 3\n"]
    assert len(home.boxes()) == 1


def test_programs_side_by_side_share_a_thread(home: Home) -> None:
    programs = [Program(LOOP, "10") for _ in range(3)]
    ended = [program.end() for program in programs]
    for code, _, err in ended:
        assert (code, err) == (0, ""), err
    counts = sorted(int(line) for _, out, _ in ended for line in out.splitlines())
    assert counts[-1] == 30, "one sandbox, in which each command has run once"
    assert len(home.boxes()) == 1


@pytest.mark.rest("SIGINT")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_whoever_is_left_takes_over(home: Home, ending: signal.Signals) -> None:
    """In the middle of a stream, and nothing is lost or told twice."""
    with running(HOST) as host:
        assert host.line() == "up"
        with running(STREAM) as guest:
            assert [guest.line() for _ in range(3)] == ["1", "2", "3"]
            host.send(ending)
            host.end()
            code, out, err = guest.end()
    assert (code, err) == (0, "")
    assert out.split() == [str(number) for number in range(4, 101)]
    kept = "from sandbox_sdk import SandboxClient\n"
    kept += "with SandboxClient('of-the-host') as s: print(s.read_text('file'), end='')"
    assert run(kept) == "mine\n"


@pytest.mark.rest
def test_a_server_beside_does_not_mind(home: Home) -> None:
    with server(home.folder):
        assert run(COUNT) == "1 1\n"
    assert run(COUNT) == "2 2\n"


# Ends

ENDS = {
    "leaving": "with SandboxClient() as s: s.execute('true')",
    "an exception": "with SandboxClient() as s:\n  s.execute('true')\n  raise KeyError('mine')",
    "never closed": "s = SandboxClient(); s.execute('true')",
    "never closed, an exception": "s = SandboxClient(); s.execute('true'); raise KeyError('mine')",
    "a stream left open": "s = SandboxClient(); e = s.stream('echo a; sleep 600'); next(e)",
    "exit": "import sys; s = SandboxClient(); s.execute('true'); sys.exit(3)",
}


@pytest.mark.rest("exit", "never closed", "a stream left open")
@pytest.mark.parametrize("ending", ENDS)
def test_nothing_is_left_of_a_session_of_its_own(home: Home, ending: str) -> None:
    source = f"from sandbox_sdk import SandboxClient\n{ENDS[ending]}"
    code, _, err = Program(source).end()
    assert code == {"exit": 3}.get(ending, 1 if "exception" in ending else 0), err
    assert ("KeyError: 'mine'" in err) if "exception" in ending else (err == "")
    assert home.boxes() == []
    assert not list(home.folder.glob("*.sock"))


INTERRUPTED = """
from sandbox_sdk import SandboxClient
with SandboxClient() as sandbox:
    sandbox.execute("true")
    print("up", flush=True)
    {wait}
"""


@pytest.mark.rest("execute", "wait", "elsewhere")
@pytest.mark.parametrize(
    "wait",
    [
        "sandbox.execute('sleep 600', timeout=700)",
        "list(sandbox.stream('sleep 600', timeout=700))",
        "sandbox.start('sleep 600').wait()",
        "import time; time.sleep(600)",
    ],
    ids=["execute", "stream", "wait", "elsewhere"],
)
def test_nothing_is_left_after_ctrl_c(home: Home, wait: str) -> None:
    with running(INTERRUPTED.format(wait=wait)) as program:
        assert program.line() == "up"
        time.sleep(0.2)  # So that it is most likely inside the call; outside holds as well.
        program.send(signal.SIGINT)
        code, _, err = program.end()
    assert (code, "KeyboardInterrupt" in err) == (-signal.SIGINT, True), err
    assert home.boxes() == []


@pytest.mark.rest("execute")
@pytest.mark.parametrize(
    "wait",
    [
        "await sandbox.execute('sleep 600', timeout=700)",
        "[event async for event in sandbox.stream('sleep 600', timeout=700)]",
    ],
    ids=["execute", "stream"],
)
def test_ctrl_c_in_an_event_loop(home: Home, wait: str) -> None:
    source = """
import asyncio
from sandbox_sdk import AsyncSandboxClient
async def main():
    async with AsyncSandboxClient() as sandbox:
        await sandbox.execute("true")
        print("up", flush=True)
        {wait}
asyncio.run(main())
"""
    with running(source.format(wait=wait)) as program:
        assert program.line() == "up"
        program.send(signal.SIGINT)
        code, _, err = program.end()
    assert (code, "KeyboardInterrupt" in err) == (-signal.SIGINT, True), err
    assert home.boxes() == []


def test_a_child_is_told_to_make_a_client_of_its_own(home: Home) -> None:
    source = """
import os, warnings
from sandbox_sdk import SandboxClient
warnings.simplefilter("ignore")
with SandboxClient("forked") as sandbox:
    sandbox.write_text("file", "shared")
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(sandbox.execute("cat file more").output)
    else:
        try:
            sandbox.execute("true")
        except RuntimeError as exc:
            assert "fork" in str(exc)
            with SandboxClient("forked") as own:
                own.write_text("more", " and more")
            os._exit(0)
        os._exit(1)
"""
    assert run(source) == "shared and more\n"
