"""`sandbox code`: files by their names, stdin, and what it leaves with."""

import json
from pathlib import Path

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)


def test_code(sandbox: Program, thread: str, tmp_path: Path) -> None:
    """With bash, which every sandbox has."""
    script = tmp_path / "some.sh"
    script.write_text("kept=1; echo out; echo err >&2")
    done = sandbox("code", "-t", thread, str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 0)
    failed = sandbox("code", "-t", thread, "-l", "bash", "-", stdin="echo $kept; exit 3")
    assert (failed.stdout, failed.returncode) == ("1\n", 1)
    assert failed.stderr == "ExitCode: 3\n"
    lines = sandbox.output("code", "-t", thread, str(script), "--json").splitlines()
    names = [json.loads(line)["event"] for line in lines]
    assert (names[0], names[-1]) == ("start", "end")
    missing = sandbox("code", "-t", thread, "-", stdin="1 + 1")
    assert missing.returncode == 125
    assert "ipykernel" in missing.stderr
    assert sandbox("code", "nothing.py").returncode == 2
