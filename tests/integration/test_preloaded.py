"""Forked servers of tests are what a new process would be, and none outlives its tests."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.preloaded import PreloadedProcess, start_server

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0

# Tells the pid of its server, and does not end by itself.
TESTS = """
import os, sys, time
from tests.preloaded import start_server
env = {**os.environ, "SANDBOX_STATE_DIR": sys.argv[1], "SANDBOX_PORT": "0",
       "SANDBOX_RUNTIME": "bubblewrap", "SANDBOX_POOL_SIZE": "0", "SANDBOX_MIN_POOL_SIZE": "0"}
with open(os.devnull, "wb") as nowhere:
    server = start_server(["--json"], env, stdout=nowhere, stderr=nowhere)
print(server.pid, flush=True)
time.sleep(1000)
"""


class Started:
    """A server, and what it says."""

    def __init__(self, folder: Path, *args: str, **settings: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        env = {**os.environ, "SANDBOX_STATE_DIR": str(folder), **settings}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process: PreloadedProcess = start_server(list(args), env, stdout=out, stderr=err)

    def ended(self) -> tuple[int, str, str]:
        code = self.process.join(WAIT_S)
        return code, self._out.read_text(), self._err.read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_has_the_arguments_environment_and_folder_it_was_given(folder: Path) -> None:
    (folder / "of.env").write_text("SANDBOX_MAX_CPUS=3\n")
    code, out, err = Started(
        folder, "--print-config", "--json", "--port", "81", "--settings", "of.env",
        SANDBOX_MAX_SESSIONS="17",
    ).ended()  # fmt: skip
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["port"], told["max_cpus"], told["max_sessions"]) == (81, 3, 17)

    _, out, _ = Started(folder, "--print-config", "--json").ended()
    assert json.loads(out)["max_sessions"] != 17


def test_its_exit_code_is_told(folder: Path) -> None:
    code, out, err = Started(folder, "--no-such-option").ended()
    assert (code, out) == (2, "")
    assert "--no-such-option" in err


async def test_it_is_killed(folder: Path) -> None:
    server = Started(folder, "--json", SANDBOX_PORT="0", SANDBOX_RUNTIME="bubblewrap").process
    assert server.returncode is None
    server.send_signal(signal.SIGKILL)
    assert await server.wait() == server.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        server.send_signal(signal.SIGKILL)


def test_an_interpreter_with_other_variables_is_not_forked() -> None:
    assert preloaded.is_possible({**os.environ, "SANDBOX_PORT": "0"})
    assert not preloaded.is_possible({**os.environ, "PYTHONPATH": "/previous"})


def test_it_ends_with_the_tests_that_started_it(folder: Path) -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with tests:
        assert tests.stdout is not None
        server = os.pidfd_open(int(tests.stdout.readline()))
        try:
            tests.kill()
            assert select.select([server], [], [], WAIT_S)[0], "it still runs"
        finally:
            os.close(server)
