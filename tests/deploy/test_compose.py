"""The stack of deploy/ does what its documents say, on the engine of this machine."""

import hashlib
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from sandbox_sdk import RemoteBackend, SandboxClient
from sandbox_sdk.protocol.events import OutputEvent
from tests.deploy.stack import DEPLOY, Stack, build_images, compose, run
from tests.ports import free_port

pytestmark = [
    pytest.mark.skipif(compose() is None, reason="no docker-compose on this machine"),
    pytest.mark.timeout(1800),  # The first time, images are built.
]
needs_engine = pytest.mark.skipif(
    "docker" not in os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(","),
    reason="no engine on this machine",
)


def config(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    named = [part for file in files for part in ("-f", file)]
    program = compose()
    assert program is not None
    return subprocess.run(
        [*program, *named, "config"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of deploy/, as a user has it who has not begun yet."""
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns(".env"))
    (tmp_path / "images").mkdir()
    return tmp_path / "deploy"


@pytest.fixture
def engine_socket(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        yield path


def test_without_keys_nothing_starts(folder: Path) -> None:
    refused = config(folder, "docker-compose.yml")
    assert refused.returncode != 0
    assert "new-env.sh" in refused.stderr


def test_new_keys_are_enough_to_start(folder: Path, engine_socket: str) -> None:
    run(str(folder / "new-env.sh"), DOCKER_SOCK=engine_socket)
    written = (folder / ".env").read_text()
    keys = re.findall(r"^\w+=(?:default:)?([0-9a-f]{64})$", written, re.MULTILINE)
    assert len(set(keys)) == 3
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    for files in (["docker-compose.yml"], ["docker-compose.yml", "docker-compose.disk.yml"]):
        accepted = config(folder, *files)
        assert accepted.returncode == 0, accepted.stderr
        assert all(key in accepted.stdout for key in keys)


def test_keys_in_use_are_not_overwritten(folder: Path, engine_socket: str) -> None:
    (folder / ".env").write_text("MINE=1\n")
    again = subprocess.run(
        [folder / "new-env.sh"], env={**os.environ, "DOCKER_SOCK": engine_socket}, check=False
    )
    assert again.returncode != 0
    assert (folder / ".env").read_text() == "MINE=1\n"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(
        tmp_path_factory.mktemp("stack"), build_images(), port=free_port(), previews=free_port()
    )
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.mark.rest
@needs_engine
def test_the_stack_serves_and_leaves_nothing_behind(stack: Stack, tmp_path: Path) -> None:
    told = run(
        sys.executable, "-m", "sandbox_sdk", "--test",
        SANDBOX_URL=stack.url, SANDBOX_API_KEY=stack.api_key,
    )  # fmt: skip
    assert "everything works" in told
    with SandboxClient("kept", backend=RemoteBackend(stack.url, api_key=stack.api_key)) as sandbox:
        check_events_come_at_once(sandbox)
        check_files_of_any_size_pass(sandbox, tmp_path)
        check_a_preview(sandbox)
        check_a_killed_worker_comes_back(sandbox, stack)
    stack.down()
    assert stack.left() == []


def check_events_come_at_once(sandbox: SandboxClient) -> None:
    """The command ends only after its first output has been seen."""
    seen = ""
    for event in sandbox.stream("echo ready; until [ -e go ]; do sleep 0.1; done; echo done"):
        if isinstance(event, OutputEvent):
            seen += event.data
            if seen == "ready\n":
                sandbox.execute("touch go")
    assert seen == "ready\ndone\n"


def check_files_of_any_size_pass(sandbox: SandboxClient, folder: Path) -> None:
    sent, received = folder / "sent", folder / "received"
    sent.write_bytes(random.Random(1).randbytes(20 << 20))
    done = sandbox.upload_file(sent, "large")
    assert done.sha256 == hashlib.sha256(sent.read_bytes()).hexdigest()
    sandbox.download_file("large", received)
    assert received.read_bytes() == sent.read_bytes()


def check_a_preview(sandbox: SandboxClient) -> None:
    sandbox.write_text("index.html", "from a box")
    server = sandbox.start("exec python3 -m http.server --bind 127.0.0.1 8080")
    sandbox.execute("until (echo > /dev/tcp/127.0.0.1/8080) 2> /dev/null; do sleep 0.05; done")
    url = urlsplit(sandbox.expose(8080).url)
    place = f"http://127.0.0.1:{url.port}"
    with httpx.Client(base_url=place, headers={"host": url.netloc}) as visitor:
        assert visitor.get("/", params=url.query).text == "from a box"
        assert visitor.get("/").status_code == 401
    server.kill()


def check_a_killed_worker_comes_back(sandbox: SandboxClient, stack: Stack) -> None:
    sandbox.execute("cd /tmp && here=still")
    before = sandbox.session()
    container = stack.worker(before.worker)
    run("docker", "kill", container)
    run("docker", "start", container)
    assert sandbox.execute("echo $here in $PWD").output == "still in /tmp\n"
    assert sandbox.session().session_id == before.session_id
