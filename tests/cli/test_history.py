"""`sandbox history`, `diff` of a command, and `undo`."""

from pathlib import Path

import pytest

from sandbox_server.runtime import disk_pool
from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _copies(state_dir: Path) -> None:
    if why := disk_pool.outlook(state_dir, wanted=True):
        pytest.skip(f"undo: {why}")


def test_undo(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "--history", "mkdir app; cd app; echo 1 > a; echo 1 > b")
    broke = sandbox("run", "-t", thread, "echo 2 > a; rm b; cd /; exit 3")
    assert broke.returncode == 3

    table = sandbox.output("history", thread).splitlines()
    assert table[0].split() == ["WHEN", "EXIT", "TIME", "COMMAND", "FILES"]
    assert table[1].startswith("2 ")
    assert "echo 2 > a; rm b; cd /; exit 3 " in table[1]
    assert table[1].endswith(" M app/a, D app/b")
    assert [each["exit_code"] for each in sandbox.json("history", thread)["entries"]] == [3, 0]
    assert sandbox.output("diff", thread, "2", "--stat") == "M app/a\nD app/b\n"
    patch = sandbox.output("diff", thread, "2")
    assert "--- a/app/a\n+++ b/app/a\n@@ -1,1 +1,1 @@\n-1\n+2\n" in patch

    assert sandbox.output("undo", thread) == "as before 2: echo 2 > a; rm b; cd /; exit 3\n"
    assert sandbox.output("run", "-t", thread, "cat a b; pwd") == "1\n1\n/workspace/app\n"
    assert "[2]" in sandbox.output("history", thread)
    assert sandbox.json("undo", thread, "--to", "1")["to"] == 1
    assert sandbox.output("run", "-t", thread, "ls") == ""

    gone = sandbox("undo", thread, "--to", "99")
    assert (gone.returncode, "before command 99" in gone.stderr) == (125, True)
    assert sandbox("diff", thread, "99").returncode == 125
    sandbox.output("rm", thread)
    assert sandbox("undo", thread).returncode == 125
