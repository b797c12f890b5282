"""What the files of deploy/ set are settings that exist."""

import re
from pathlib import Path

import pytest

from sandbox_server.checks import check_start
from sandbox_server.settings import Settings, load
from sandbox_server.unused import unused

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


async def test_a_fleet_may_share_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to the other role is told, and keeps nobody from starting."""
    shared = {"REDIS_URL": "redis://r", "SANDBOX_FLEET_KEY": "k", "SANDBOX_IMAGE": "x",
              "SANDBOX_NETWORK": "bridge", "SANDBOX_PIDS_LIMIT": "64",
              "SANDBOX_PATIENCE": "1m"}  # fmt: skip
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    told = {"SANDBOX_IMAGE", "SANDBOX_NETWORK", "SANDBOX_PIDS_LIMIT"}
    coordinator = load(role="coordinator")
    await check_start(coordinator)
    assert told <= set(unused(coordinator))
    of_worker = unused(load(role="worker"))
    assert "SANDBOX_PATIENCE" in of_worker
    assert not told & set(of_worker)
