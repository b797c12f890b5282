"""Programs of somebody who is not root, with sandboxes of their own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sandbox_server
from tests.contract.conftest import RUNTIMES
from tests.integration.test_start import interpreter

USER = 65534


needs_a_second_user = pytest.mark.skipif(
    "bubblewrap" not in RUNTIMES or os.geteuid() != 0 or interpreter() is None,
    reason="takes bubblewrap and a second user",
)


def run_as_a_user(script: str, **settings: str) -> None:
    """The script prints `fine` in the end."""
    installed = [path for path in sys.path if path.endswith("-packages")]
    packages = [str(Path(sandbox_server.__file__).parents[1]), *installed]
    with tempfile.TemporaryDirectory(prefix="user-") as home:
        os.chown(home, USER, USER)
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": home,
            "SANDBOX_RUNTIME": "bubblewrap",
            "SANDBOX_STATE_DIR": f"{home}/state",
            "PYTHONPATH": os.pathsep.join(packages),
            "PYTHONDONTWRITEBYTECODE": "1",
            **settings,
        }
        done = subprocess.run(
            [interpreter() or "", "-c", script],
            user=USER, group=USER, extra_groups=[], cwd="/", env=env,
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
