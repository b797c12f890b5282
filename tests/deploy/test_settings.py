"""What the files of deploy/ set are settings that exist."""

import re
from pathlib import Path

import pytest

from sandbox_server.settings import Settings

ROOT = Path(__file__).parents[2]
NOT_OF_THE_SERVER = {"SANDBOX_URL", "SANDBOX_API_KEY"}
FILES = [
    path
    for path in (*sorted((ROOT / "deploy").rglob("*")), ROOT / "images/Dockerfile.server")
    if path.is_file() and path.name != ".env"
]


@pytest.mark.parametrize("path", [*FILES, ROOT / "docs/scaling.md"], ids=lambda path: path.name)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"SANDBOX_[A-Z][A-Z_]*[A-Z]", path.read_text()))
    known = {f"SANDBOX_{name.upper()}" for name in Settings.model_fields}
    assert named - known - NOT_OF_THE_SERVER == set()
