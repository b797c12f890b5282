"""`sandbox forward`: ports of a sandbox as ports of this machine."""

import re
import signal
import socket
import urllib.request

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.
SERVE = (
    "echo hello > index.html; (python3 -m http.server 8080 > /dev/null 2>&1 &);"
    " until (echo > /dev/tcp/127.0.0.1/8080) 2> /dev/null; do sleep 0.05; done"
)


def test_forward(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, SERVE)
    forwarding = sandbox.popen("forward", thread, "0:8080", "0:/tmp/none.sock")
    assert forwarding.stdout is not None
    try:
        line = forwarding.stdout.readline()
        found = re.fullmatch(rf"127\.0\.0\.1:(\d+) leads to 8080 of {thread}\n", line)
        assert found is not None, line
        address = f"http://127.0.0.1:{found[1]}"
        for _ in range(2):
            with urllib.request.urlopen(address, timeout=60) as page:
                assert page.read() == b"hello\n"
        assert "leads to /tmp/none.sock" in forwarding.stdout.readline()
    finally:
        forwarding.send_signal(signal.SIGINT)
        _, complaints = forwarding.communicate(timeout=60)
    assert (forwarding.returncode, complaints) == (130, "")


def test_mistakes(sandbox: Program, thread: str) -> None:
    missing = sandbox("forward", thread, "8080")
    assert (missing.returncode, "has no session" in missing.stderr) == (125, True)
    for wrong in ("http", "0", "70000", "1:2:3", "-1:80", "/tmp/a.sock"):
        assert sandbox("forward", thread, "--", wrong).returncode == 2
    sandbox.output("run", "-t", thread, "true")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = sandbox("forward", thread, f"{taken.getsockname()[1]}:8080")
    assert (done.returncode, "in use" in done.stderr) == (125, True)
