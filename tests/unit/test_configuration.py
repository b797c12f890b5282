"""What is made from the settings: docs/configuration.md, the units, the file of `sandbox init`."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sandbox_sdk.variables import VARIABLES
from sandbox_server.cli.init import settings_file
from sandbox_server.cli.systemd import unit
from sandbox_server.settings import entries, load
from sandbox_server.settings.file import read_into_environment
from scripts import configuration

ROOT = Path(__file__).parents[2]
STALE = "run `python scripts/configuration.py`"


def test_the_page_has_every_setting() -> None:
    page = configuration.PAGE.read_text()
    assert page == configuration.written(page), STALE
    for name in (*(entry.variable for entry in entries()), *VARIABLES):
        assert f"| `{name}` |" in page


@pytest.mark.parametrize("role", configuration.UNITS)
def test_the_units_of_deploy(role: str) -> None:
    assert configuration.UNITS[role].read_text() == configuration.unit_of(role), STALE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("role", configuration.UNITS)
def test_systemd_takes_the_units(role: str, tmp_path: Path) -> None:
    program = tmp_path / "with space and 100%" / "sandbox"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    path = tmp_path / f"agent-sandbox-{role}.service"
    path.write_text(unit(role, program=program, settings=tmp_path / "x y.env"))
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    of_ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, of_ours) == (0, [])


def test_a_program_in_a_home_can_be_read() -> None:
    """ProtectHome=yes would hide it from its own unit."""
    made = unit("standalone", program=Path("/home/me/.venv/bin/sandbox"), settings=Path("/x"))
    assert "ProtectHome=read-only\n" in made
    assert "ProtectHome=yes\n" in configuration.unit_of("standalone")


def test_the_settings_file_says_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all lines in force: those with a default change nothing, the others are right too."""
    text = settings_file("standalone")
    assert not [line for line in text.splitlines() if line and not line.startswith("#")]
    plain = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    monkeypatch.setattr(os, "environ", dict(plain))
    without = load()
    file = tmp_path / "all.env"
    file.write_text(re.sub(r"^# (?=SANDBOX_[A-Z0-9_]+=)", "", text, flags=re.M))
    read_into_environment(file)
    everything = load()
    assert everything.model_fields_set == {entry.name for entry in entries()}
    for entry in entries():
        if entry.default:
            assert getattr(everything, entry.name) == getattr(without, entry.name), entry.name
    sourced = subprocess.run(
        ["bash", "-euc", f"set -a; . {file}; printf %s \"$SANDBOX_ENVIRONMENTS\""],
        env=plain, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sourced.stdout == os.environ["SANDBOX_ENVIRONMENTS"]


def _is_setting(name: str) -> bool:
    return name.startswith(("SANDBOX_", "REDIS_")) or name in ("PORT", "WORKERS", "WORKER_ID")


def test_all_is_everything_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def closed(name: str) -> set[str]:
        inner = (re.fullmatch(r"agent-sandbox\[(.*)\]", each) for each in extras[name])
        found = {each for match in inner if match for each in match[1].split(",")}
        return found.union(*map(closed, found))

    assert closed("all") == extras.keys() - {"all", "bench", "dev"}


def test_make_serve_takes_a_port() -> None:
    done = subprocess.run(
        ["make", "-n", "-o", ".venv/.serves", "serve", "PORT=9000"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "sandbox serve --port 9000\n" in done.stdout


def test_set_up_shows_that_it_goes_on(tmp_path: Path) -> None:
    script = (
        "set -euo pipefail; . scripts/progress.sh\n"
        f"with_progress {tmp_path}/log bash -c 'echo working; read <{tmp_path}/go; exit 3'"
    )
    os.mkfifo(tmp_path / "go")
    with subprocess.Popen(
        ["bash", "-c", script], cwd=ROOT, env={**os.environ, "PROGRESS_S": "0.05"},
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while "working" not in process.stderr.readline():
            assert process.poll() is None
        (tmp_path / "go").write_text("\n")
        assert process.wait(30) == 3
