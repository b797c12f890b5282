"""The real program against a real server on embedded boxes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk import RemoteBackend, SandboxClient, SandboxError
from tests.cli.program import SANDBOX, Program
from tests.contract.conftest import RUNTIMES, state_dir

__all__ = ["state_dir"]


@pytest.fixture(scope="session", params=[name for name in RUNTIMES if name == "bubblewrap"])
def machine(request: pytest.FixtureRequest, state_dir: Path) -> dict[str, str]:
    """The environment of a program that makes boxes, a machine of its own as far as it can see."""
    foreign = ("SANDBOX_", "DOCKER_", "REDIS_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **own,
        "HOME": str(state_dir),
        "XDG_STATE_HOME": str(state_dir / "xdg"),
        "SANDBOX_RUNTIME": str(request.param),
        "SANDBOX_STATE_DIR": str(state_dir),
        "SANDBOX_WORKER_ID": f"cli-{uuid.uuid4().hex[:8]}",
        "SANDBOX_POOL_SIZE": "1",
        "SANDBOX_MIN_POOL_SIZE": "0",
        "SANDBOX_MAX_POOL_SIZE": "2",
    }


@pytest.fixture(scope="session")
def url(machine: dict[str, str], state_dir: Path) -> Iterator[str]:
    command = [SANDBOX, "serve", "--port", "0", "--json", "--destroy-on-exit"]
    with (state_dir / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=machine, stdout=subprocess.PIPE, stderr=log)
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(60)
        server.stdout.close()
    assert code == 0, (state_dir / "server.log").read_text()


@pytest.fixture
def sandbox(machine: dict[str, str], url: str, tmp_path: Path) -> Program:
    """The program, as a client of the server."""
    return Program({**machine, "SANDBOX_URL": url, "PATH": _path()}, tmp_path)


@pytest.fixture
def alone(machine: dict[str, str], tmp_path: Path) -> Program:
    """The program without a server."""
    name = f"alone-{uuid.uuid4().hex[:8]}"
    return Program({**machine, "SANDBOX_WORKER_ID": name, "PATH": _path()}, tmp_path)


@pytest.fixture
def thread(url: str) -> Iterator[str]:
    """A thread whose session is gone after the test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    yield name
    client = SandboxClient(name, backend=RemoteBackend(url))
    with client, contextlib.suppress(SandboxError):  # A test may have ended it.
        client.cleanup()


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
