"""`sandbox checkpoint`, `checkpoints`, `rewind` and `fork`."""

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


def test_checkpoints(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "echo 1 > a; cd /tmp")
    first = sandbox.output("checkpoint", thread, "first").strip()
    sandbox.output("run", "-t", thread, "echo 2 > /workspace/a; cd /")
    second = sandbox.json("checkpoint", thread)
    assert (second["parent"], second["name"]) == (first, None)

    table = sandbox.output("checkpoints", thread).splitlines()
    assert table[0].split() == ["CHECKPOINT", "THREAD", "NAME", "TAKEN", "FILES", "SIZE", "ADDED"]
    assert [line.split()[0] for line in table[1:]] == [second["checkpoint_id"], first]
    tree = sandbox.output("checkpoints", thread, "--tree").splitlines()
    assert tree[0].startswith(f"{first} {thread} first,")
    assert tree[1].startswith(f"└─ {second['checkpoint_id']} {thread},")

    sandbox.output("rewind", thread, first)
    assert sandbox.output("run", "-t", thread, "cat /workspace/a; pwd") == "1\n/tmp\n"
    made = sandbox.output("fork", thread, f"{thread}-b").split()
    assert made == [f"{thread}-b"]
    assert sandbox.output("run", "-t", f"{thread}-b", "cat /workspace/a") == "1\n"
    sandbox.output("rm", f"{thread}-b")
    from_second = sandbox.json("fork", second["checkpoint_id"], f"{thread}-c")
    assert from_second["checkpoint_id"] == second["checkpoint_id"]
    assert sandbox.output("run", "-t", f"{thread}-c", "cat /workspace/a; pwd") == "2\n/\n"
    sandbox.output("rm", f"{thread}-c")

    sandbox.output("checkpoints", "--delete", first)
    gone = sandbox("rewind", thread, first)
    assert (gone.returncode, gone.stderr.startswith("sandbox: no checkpoint")) == (125, True)
    assert sandbox("checkpoints", thread, "--delete", "x").returncode == 2
    sandbox.output("rm", thread)
    assert sandbox("checkpoint", thread).returncode == 125


def test_what_runs_is_told(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "sleep 1000 > /dev/null 2>&1 & sleep 0.2")
    made = sandbox("checkpoint", thread)
    assert made.stdout.startswith("cp-")
    assert "not in it, because they are processes: sleep 1000" in made.stderr
    sandbox.output("rm", thread)
