"""A newcomer, and the server that a newcomer starts."""

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk import SandboxClient
from tests.contract.conftest import RUNTIMES, state_dir
from tests.first_hour.newcomer import BIN, Newcomer, newcomer_in
from tests.run import VARIABLE

__all__ = ["state_dir"]


@pytest.fixture(scope="session", params=[name for name in RUNTIMES if name == "bubblewrap"])
def machine(request: pytest.FixtureRequest, state_dir: Path) -> dict[str, str]:
    """What sets this machine apart from a newcomer's: which runtime, and whose boxes they are."""
    run = {name: value for name, value in os.environ.items() if name == VARIABLE}
    return {
        **run,
        "SANDBOX_RUNTIME": str(request.param),
        "SANDBOX_STATE_DIR": str(state_dir),
        "SANDBOX_POOL_SIZE": "1",
    }


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    """Without a server."""
    return newcomer_in(tmp_path)


@pytest.fixture(scope="session")
def url(machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server that a newcomer has started."""
    with serving(newcomer_in(tmp_path_factory.mktemp("server")), machine) as url:
        yield url


@contextmanager
def serving(newcomer: Newcomer, settings: dict[str, str]) -> Iterator[str]:
    name = {"SANDBOX_WORKER_ID": f"newcomer-{uuid.uuid4().hex[:8]}"}
    log = newcomer.folder / "server.log"
    with log.open("wb") as stderr:
        server = subprocess.Popen(
            [BIN / "sandbox", "serve", "--port", "0", "--json", "--destroy-on-exit"],
            env={**newcomer.env, **settings, **name},
            cwd=newcomer.folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line)["url"]
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(60)
        server.stdout.close()
    assert code == 0, log.read_text()


@pytest.fixture
def remote(newcomer: Newcomer, url: str) -> Newcomer:
    """With the server in SANDBOX_URL, which has no sessions of an earlier test: documents use the
    same names, with other environments."""
    with SandboxClient(server_url=url) as client:
        for each in client.sessions().sessions:
            SandboxClient(session_id=each.session_id, server_url=url).cleanup()
    return replace(newcomer, env={**newcomer.env, "SANDBOX_URL": url, "READER_URL": url})
