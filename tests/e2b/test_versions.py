"""Other versions of e2b's SDK, and the one for JavaScript, each as a program of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2b.servers import KEY, Served

pytestmark = pytest.mark.one_way

HERE = Path(__file__).parent
VERSIONS = ["2.45.1", "2.63.0", "newest"]
JAVASCRIPT = "2.51.0"
TOOLS = {"langchain-e2b": "langchain-e2b==0.0.6", "openai-agents": None}


def _run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def _environment(served: Served, key: str) -> dict[str, str]:
    door = f"{served.urls[0]}/e2b"
    named = {"E2B_API_URL": door, "E2B_SANDBOX_URL": door, "E2B_API_KEY": key}
    return {**os.environ, **named}


@pytest.mark.rest("2.45.1", "2.63.0")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_python(served: Served, version: str, tmp_path: Path) -> None:
    """With a key in the form that the older of them insist on."""
    wanted = "e2b" if version == "newest" else f"e2b=={version}"
    folder = str(tmp_path / "sdk")
    _run(sys.executable, "-m", "pip", "install", "-q", "--target", folder, wanted)
    environment = _environment(served, f"e2b_{KEY.encode().hex()}")
    told = _run(sys.executable, str(HERE / "smoke.py"), env={**environment, "PYTHONPATH": folder})
    assert version in ("newest", told.strip())


@pytest.mark.rest("langchain-e2b", "openai-agents")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", [*TOOLS])
def test_tools(served: Served, tool: str, tmp_path: Path) -> None:
    """With what is installed here; of those that are not, the package alone."""
    environment, wanted = _environment(served, KEY), TOOLS[tool]
    if wanted is not None:
        folder = str(tmp_path / "tool")
        _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, wanted)
        environment["PYTHONPATH"] = folder
    assert _run(sys.executable, str(HERE / "tools.py"), tool, env=environment) == "done\n"


@pytest.mark.timeout(600)
def test_javascript(served: Served, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm, "this test needs npm, which comes with Node.js"
    assert node, "this test needs Node.js"
    (tmp_path / "package.json").write_text("{}")
    _run(npm, "install", "--no-audit", "--no-fund", f"e2b@{JAVASCRIPT}", cwd=tmp_path)
    shutil.copy(HERE / "smoke.mjs", tmp_path)
    environment = _environment(served, f"e2b_{KEY.encode().hex()}")
    assert _run(node, "smoke.mjs", cwd=tmp_path, env=environment) == "done\n"
