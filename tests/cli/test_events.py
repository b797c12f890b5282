"""`sandbox events`."""

import json

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


def test_events(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "exit 0")
    of_it = ("events", "--thread", thread, "--after", "", "--count", "1")
    assert f" {thread} " in sandbox.output(*of_it)
    told = json.loads(sandbox.output(*of_it, "--json"))
    assert told["thread_id"] == thread
    after = sandbox.output("events", "-t", thread, "--after", told["id"], "-n", "1", "--json")
    assert json.loads(after)["id"] != told["id"]
    failed = sandbox("events", "--kind", "nonsense")
    assert (failed.returncode, "--kind is one of" in failed.stderr) == (2, True)
