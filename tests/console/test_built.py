"""The built files of the console are those that its sources make."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
BUILT = ROOT / "src/sandbox_server/console/static"


@pytest.fixture(scope="module")
def packages() -> None:
    """The npm packages of web/, at the versions of its lock file."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("the console's sources: no npm (apt-get install npm)")
    with (WEB / "package.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Tests may run in several processes.
        installed, wanted = WEB / "node_modules/.package-lock.json", WEB / "package-lock.json"
        if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
            return
        done = subprocess.run(["npm", "ci"], cwd=WEB, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"the console's sources: npm ci failed: {done.stderr.strip()[-300:]}")


def test_the_built_files_are_those_of_the_sources(packages: None, tmp_path: Path) -> None:
    folder = tmp_path / "built"
    subprocess.run(["node", "build.mjs", str(folder)], cwd=WEB, check=True)
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    kept = {path.name: path.read_bytes() for path in BUILT.iterdir()}
    assert made.keys() == kept.keys()
    differing = [name for name, content in made.items() if content != kept[name]]
    assert differing == [], "run `make console`, and commit what it builds"


def test_the_sources_have_no_type_errors(packages: None) -> None:
    done = subprocess.run(["npm", "run", "check"], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_lock_file_names_no_host() -> None:
    """Packages come from wherever npm is told to get them, not from where they were first."""
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()
