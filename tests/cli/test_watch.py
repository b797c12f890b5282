"""`sandbox watch`."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


def test_watch(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "mkdir -p src/a")

    def watched(*options: str) -> str:
        return sandbox.output("watch", thread, "src", "-r", *options)

    with ThreadPoolExecutor() as pool:
        told = pool.submit(watched, "--count", "1"), pool.submit(watched, "-n", "1", "--json")
        while not all(each.done() for each in told):
            sandbox.output("run", "-t", thread, "rm -rf src/a/b; mkdir src/a/b")
    assert told[0].result() in ("create a/b/\n", "remove a/b/\n")
    assert json.loads(told[1].result())["path"] == "a/b"
    failed = sandbox("watch", thread, "nowhere")
    assert (failed.returncode, "does not exist" in failed.stderr) == (125, True)
