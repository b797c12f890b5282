"""Programs written for earlier versions, run as they were printed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.conftest import RUNTIMES
from tests.run import run_owner

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not RUNTIMES, reason="needs a runtime for boxes"),
]


@pytest.fixture(scope="module", params=[name for name in RUNTIMES if name != "gvisor"])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server as `make serve` starts it on a machine without an engine, and with one."""
    state = tmp_path_factory.mktemp("state")
    for folder in (state, *state.parents):
        if folder.is_relative_to(tmp_path_factory.getbasetemp().parent):
            folder.chmod(0o711)
    settings = {
        "SANDBOX_RUNTIME": runtime,
        "SANDBOX_STATE_DIR": str(state),
        "SANDBOX_WORKER_ID": run_owner(f"seeds-{runtime}-{os.getpid()}"),
        "SANDBOX_PORT": "0",
        "SANDBOX_DESTROY_ON_EXIT": "1",
        "POOL_SIZE": "1",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "sandbox_server", "--json"],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"].rstrip("/")
    finally:
        server.terminate()
        server.communicate(timeout=60)


def program(url: str, source: str, folder: Path) -> str:
    """What a program prints, whose printed URLs are those of the server."""
    for printed in ("http://localhost:5000", "http://localhost:8000"):
        source = source.replace(printed, url)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "SANDBOX_URL": url},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FIRST = """
from sandbox_client import SandboxClient

with SandboxClient(server_url="http://localhost:5000") as sandbox:
    result = sandbox.execute("ls -la")
    print(result['output'])

def bash_node(state):
    with SandboxClient() as sandbox:
        result = sandbox.execute(state['command'])
        return {'output': result['output']}

print(bash_node({'command': 'echo from a node'})['output'])

client = SandboxClient("http://localhost:5000")
client.create_session()
result = client.execute("echo by hand")
print(result['output'])
client.cleanup()
"""

SECOND = """
from sandbox_client_v2 import SandboxClient, BatchSandboxClient

with SandboxClient(server_url="http://localhost:8000") as sandbox:
    result = sandbox.execute("whoami")
    print(f"User: {result['output']}")
    result = sandbox.execute("python3 -c 'print(2+2)'")
    print(result['output'])

client = BatchSandboxClient()
results = client.execute_batch([
    "echo 'Step 1'",
    "python3 --version",
    "ls -la"
])
for result in results:
    print(result['output'])

with SandboxClient() as sandbox:
    sandbox.upload_file("local_script.py", "script.py")
    result = sandbox.execute("python3 script.py")
    print(result['output'])

def execute_code_node(state):
    with SandboxClient("http://localhost:8000") as sandbox:
        result = sandbox.execute(state['code'])
        return {'output': result['output'], 'exit_code': result['exit_code']}

print(execute_code_node({'code': 'exit 3'})['exit_code'])
"""

MAPPINGS = """
import json
from sandbox_client_v2 import SandboxClient

with SandboxClient("http://localhost:8000") as sandbox:
    session = sandbox.create_session()
    print('worker' in session, bool(session.get('worker')), sandbox.session_id)
    result = sandbox.execute("echo hi")
    print('output' in result, 'outputs' in result, result.get('outputs', 'none'))
    print(dict(result)['output'], json.loads(json.dumps(result.to_dict()))['exit_code'])
    print(sorted(result)[:2], sorted(result.keys()) == sorted(dict(result)))
    print(sandbox.health_check()['status'])
"""

PLATFORM = """
from sandbox_sdk.platform import Lifecycle

lifecycle = Lifecycle(
    storage_path="./storage",
    runtime_path="./sandbox_runtime",
    e2b_api_key="your_key"
)

# Start session
session = lifecycle.start(
    agent_config={"type": "code_executor"},
    environment="Python3",
    provider=PROVIDER
)

# Execute code
result = lifecycle.sandbox_mgr.execute_code(
    session_id=session["session_id"],
    code="print('Hello World')"
)
print(result["stdout"], result["error"], session["environment"])
failed = lifecycle.sandbox_mgr.execute_code(session["session_id"], "open('made', 'w'); 1 / 0")
print(failed["error"]["name"], failed["artifacts"][0]["path"])

# Cleanup
lifecycle.stop(session["session_id"], session["sandbox_id"])
print(lifecycle.session(session["session_id"])["state"])
"""


def test_the_first_version(url: str, tmp_path: Path) -> None:
    printed = program(url, FIRST, tmp_path)
    assert "total" in printed
    assert "from a node\n" in printed
    assert "by hand\n" in printed


def test_the_second_version(url: str, tmp_path: Path) -> None:
    (tmp_path / "local_script.py").write_text("print('a script')\n")
    printed = program(url, SECOND, tmp_path)
    for line in ("User: sandboxuser", "4", "Step 1", "a script", "3"):
        assert line in printed.splitlines()
    tried = (
        "import runpy, sys\nsys.argv[1:] = ['--test']\n"
        "runpy.run_module('sandbox_client_v2', run_name='__main__')"
    )
    done = program(url, tried, tmp_path)
    assert "whoami: sandboxuser" in done


def test_results_are_mappings(url: str, tmp_path: Path) -> None:
    lines = program(url, MAPPINGS, tmp_path).splitlines()
    assert lines[0].startswith("True True ")
    assert lines[1:3] == ["True False none", "hi"]
    assert lines[3].strip() == "0"
    assert lines[4] == "['artifact_problems', 'artifacts'] True"
    assert lines[5] == "healthy"


def test_an_upload_with_the_file_first(url: str) -> None:
    with httpx.Client(base_url=url) as http:
        session = http.post("/create_session").json()
        assert session["worker"]
        for form, path in (
            ([("file", ("a.txt", b"one")), ("session_id", (None, session["session_id"]))], "a.txt"),
            ([("file", ("b.txt", b"two")), ("path", (None, "c/d.txt")),
              ("session_id", (None, session["session_id"]))], "c/d.txt"),
            ([("session_id", (None, session["session_id"])), ("file", ("e", b"three")),
              ("path", (None, "f"))], "f"),
        ):  # fmt: skip
            sent = http.post("/upload_file", files=form)
            assert sent.json()["path"] == f"/workspace/{path}"
        http.post("/cleanup", json={"session_id": session["session_id"]})


def test_the_platform_in_python(url: str, runtime: str, tmp_path: Path) -> None:
    printed = program(url, PLATFORM.replace("PROVIDER", repr(runtime)), tmp_path)
    assert printed.splitlines() == [
        "Hello World",
        " None Python3",
        "ZeroDivisionError /workspace/made",
        "cleaned",
    ]
    with pytest.raises(AssertionError, match="SANDBOX_E2B_API_KEY"):
        program(url, PLATFORM.replace("PROVIDER", "'e2b'"), tmp_path)


def test_the_platform_with_curl(url: str) -> None:
    def curl(*words: str) -> dict[str, object]:
        done = subprocess.run(["curl", "-s", *words], capture_output=True, check=True, timeout=60)
        return dict(json.loads(done.stdout))

    made = curl("-X", "POST", f"{url}/api/sessions", "-d", '{"environment": "Python3"}')
    body = json.dumps({"session_id": made["session_id"], "code": "print(42)"})
    ran = curl("-X", "POST", f"{url}/api/e2b/execute", "-d", body)
    assert (ran["stdout"], ran["error"]) == ("42\n", None)
    where = f"{url}/api/sessions/{made['session_id']}?sandbox_id={made['sandbox_id']}"
    assert curl("-X", "DELETE", where)["status"] == "destroyed"
    stored = curl(str(made["url"]))
    assert (stored["state"], stored["environment"]) == ("cleaned", "Python3")
