"""`sandbox artifacts`."""

from pathlib import Path

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


def test_artifacts(sandbox: Program, thread: str, tmp_path: Path) -> None:
    sandbox.output("run", "-t", thread, "--artifacts", "mkdir out; echo 1 > out/a.csv; echo 2 > b")
    sandbox.output("rm", thread)
    found = sandbox.json("artifacts", thread)["artifacts"]
    assert sorted(each["path"] for each in found) == ["/workspace/b", "/workspace/out/a.csv"]
    table = sandbox.output("artifacts", thread).splitlines()
    assert table[0].split() == ["ARTIFACT", "THREAD", "PATH", "SIZE", "TYPE", "MADE"]
    assert len(table) == 3

    written = sandbox.output("artifacts", thread, "--download", str(tmp_path)).splitlines()
    session = found[0]["session_id"]
    assert sorted(written) == [
        str(tmp_path / session / "workspace" / "b"),
        str(tmp_path / session / "workspace" / "out" / "a.csv"),
    ]
    assert Path(sorted(written)[1]).read_text() == "1\n"

    sandbox.output("artifacts", "--delete", found[0]["artifact_id"])
    assert len(sandbox.json("artifacts", thread)["artifacts"]) == 1
    gone = sandbox("artifacts", "--delete", found[0]["artifact_id"])
    assert gone.returncode == 125
    assert gone.stderr.startswith("sandbox: no artifact")
    assert sandbox("artifacts", thread, "--delete", "x").returncode == 2
