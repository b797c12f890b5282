"""`sandbox volumes`, and `--volume`."""

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


def test_volumes(sandbox: Program, thread: str) -> None:
    made = sandbox.json("volumes", "--create", "models", "--size", "32m")
    assert (made["name"], made["size"]) == ("models", 32 << 20)
    again = sandbox("volumes", "--create", "models")
    assert (again.returncode, "there is a volume 'models'" in again.stderr) == (125, True)
    sandbox.output("run", "-t", thread, "-v", "models", "echo 1 > models/a")
    wanted = ("--volume", "models:/workspace/m:ro")
    refused = sandbox("run", "-t", f"{thread}-b", *wanted, "true")
    assert (refused.returncode, f"thread '{thread}' has it, rw" in refused.stderr) == (125, True)

    heads, row = sandbox.output("volumes").splitlines()
    assert heads.split() == ["VOLUME", "SIZE", "USED", "MADE", "WORKER", "MOUNTED", "BY"]
    assert row.startswith("models  32 MiB")
    assert row.endswith(f"{thread} (rw)")
    assert sandbox("volumes", "--delete", "models").returncode == 125
    sandbox.output("rm", thread)
    # Of a run of its own, and read-only.
    assert sandbox.output("run", *wanted, "cat m/a") == "1\n"
    assert sandbox("run", *wanted, "rm m/a").returncode == 1
    sandbox.output("volumes", "--delete", "models")
    assert len(sandbox.output("volumes").splitlines()) == 1
    assert sandbox("volumes", "--size", "1g").returncode == 2
    assert sandbox("run", "-v", "../x", "true").returncode == 125
