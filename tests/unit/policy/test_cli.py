"""`sandbox policy`, without a server."""

import json
from pathlib import Path

from typer.testing import CliRunner

from sandbox_server.cli.policy import app


def test_check() -> None:
    result = CliRunner().invoke(app, ["check", "ls; bash -c 'rm -rf /'", "--policy", "default"])
    assert result.exit_code == 1
    assert "REJECTED by default (blacklist)" in result.output
    assert "remove-root" in result.output
    assert "rm -rf /  (by bash)" in result.output
    result = CliRunner().invoke(app, ["check", "ls $x", "--policy", "open", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["commands"][0]["argv"] == ["ls", None]


def test_validate(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["validate", "strict"]).output.startswith("strict: whitelist, ")
    (tmp_path / "bad.yaml").write_text("mode: maybe\n")
    result = CliRunner().invoke(app, ["validate", str(tmp_path / "bad.yaml")])
    assert result.exit_code == 125
    assert "bad.yaml:1: unknown mode" in result.output
