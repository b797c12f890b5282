"""One real server for all documents."""

import os
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import machine, state_dir, url

__all__ = ["machine", "state_dir", "url"]


@pytest.fixture
def reader_env(
    machine: dict[str, str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What a reader's shell has: the installed programs, and a curl that tells failures."""
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    monkeypatch.setenv("SANDBOX_URL", url)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CURL_HOME": str(tmp_path),
        "LANG": "C.UTF-8",
    }
