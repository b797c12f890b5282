"""Breaks the product on purpose, one promise at a time, and shows which test fails: `make breaks`.

    python -m tests.breaks [NAME …]     all of them, or these; the table goes to build/breaks.md

Each patch is tried on a copy of the tree: first the tests of `make test` in the files concerned,
and if none of them fails, the rest of `make test-all`.

A patch must not harm the machine: without a limit of processes, say, a hostile test would fill it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.breaks.patches import FOLDER, Patch, patches

ROOT = Path(__file__).parents[2]
COPIED = (
    "src", "tests", "images", "examples", "docs", "deploy", "scripts", "web", "Makefile",
    "pyproject.toml", "README.md", "API_REFERENCE.md", "INTEGRATION_GUIDE.md", "CHANGELOG.md",
)  # fmt: skip
TABLE = ROOT / "build" / "breaks.md"
LANES = {"main": "make test", "rest": "the rest"}
JOBS = os.environ.get("JOBS", "4")
NOTHING = "| nothing | |"
_FAILED = re.compile(r"^(?:FAILED|ERROR|SUBFAILED.*?) (tests/\S+?::.+?)(?: - .*)?$", re.MULTILINE)
"""With a test's name: a file that cannot be imported is no proof of anything."""
_LEFT = re.compile(r"^=+ \d+ left behind =+\n +(.*)$", re.MULTILINE)
_SELECTED_NONE = 5


def main() -> int:
    wanted = set(sys.argv[1:])
    found = [patch for patch in patches() if not wanted or patch.name in wanted]
    if unknown := wanted - {patch.name for patch in found}:
        print(f"no patch {', '.join(sorted(unknown))} in {FOLDER}", file=sys.stderr)
        return 2
    rows = [_tried(patch) for patch in found]
    missed = [row for row in rows if row.endswith(NOTHING)]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(("| broken | found by | test |", "| --- | --- | --- |", *rows, "")))
    print(f"{len(rows)} patches, {len(missed)} that no test finds; the table is {TABLE}")
    return 1 if missed else 0


def _tried(patch: Patch) -> str:
    """A row of the table."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        tree = Path(folder)
        _copy_to(tree)
        patch.apply(tree)
        row = f"| {patch.promise} {NOTHING}"
        for lane, command in LANES.items():
            if failed := _failed(tree, lane, patch.tests):
                row = f"| {patch.promise} | {command} | `{failed}` |"
                break
    print(f"{row} {patch.name}, {time.monotonic() - began:.0f} s", flush=True)
    return row


def _copy_to(tree: Path) -> None:
    """With what Python has compiled, as the times of the files stay the same."""
    ignored = shutil.ignore_patterns("node_modules")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy2(source, tree / name)


def _failed(tree: Path, lane: str, tests: list[str]) -> str:
    """The first test that fails; empty if none does. Raises RuntimeError if they cannot be run."""
    pure = all(test.startswith("tests/unit/") for test in tests)  # They are over sooner than begun.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0" if pure else JOBS, "--dist",
         "worksteal", "-p", "no:cacheprovider", *tests],
        cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "SANDBOX_TEST_LANE": lane},
    )  # fmt: skip
    if found := _FAILED.search(done.stdout):
        return found[1]
    if found := _LEFT.search(done.stdout):
        return f"{found[1]} is left behind"
    if done.returncode not in (0, _SELECTED_NONE):
        raise RuntimeError(f"{lane}, {tests}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ""


if __name__ == "__main__":
    sys.exit(main())
