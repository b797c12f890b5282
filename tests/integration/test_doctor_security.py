"""`sandbox doctor --security`, with real boxes and with one that is not confined at all."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import sandbox_server
from sandbox_server.doctor import inside as inside_program
from sandbox_server.doctor.confinement import Promised, judge
from sandbox_server.doctor.findings import State
from sandbox_server.doctor.security import examine_security
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES, state_dir

__all__ = ["state_dir"]

SMALL = {"memory_limit": "128m", "pids_limit": 64, "disk_limit": "64m"}
MEASURED = {
    "user", "capabilities", "no new privileges", "setuid programs", "seccomp", "system calls",
    "kernel settings", "writable paths", "mounts", "host files", "devices", "network",
    "process limit", "cpu limit", "disk limit", "file size limit", "memory limit",
}  # fmt: skip
VERSIONS = {
    "docker": {"engine", "containerd", "runc"},
    "gvisor": {"engine", "containerd", "runc", "gvisor"},
    "bubblewrap": {"bubblewrap"},
}
WEAK = {"docker": {"file size limit"}, "gvisor": {"file size limit", "process limit", "cpu limit"}}
"""What a machine may be warned of."""


@pytest.mark.parametrize("name", RUNTIMES)
async def test_a_box_of_every_runtime(name: str, state_dir: Path) -> None:
    settings = load(
        runtime="bubblewrap" if name == "bubblewrap" else "docker",
        docker_runtime="runsc" if name == "gvisor" else None,
        state_dir=state_dir,
        **SMALL,
    )
    found = [finding async for finding in examine_security(settings)]
    names = {finding.name for finding in found}
    assert MEASURED | VERSIONS[name] <= names
    of_versions = VERSIONS[name]
    states = {each.name: each.state for each in found if each.name not in of_versions}
    weak = {name_ for name_, state in states.items() if state != State.OK}
    assert weak <= WEAK.get(name, set()), found
    assert State.FAILED not in states.values()
    assert all(finding.fix for finding in found if finding.state != State.OK)


@pytest.mark.skipif("docker" not in RUNTIMES, reason="no docker here")
def test_a_container_that_is_not_confined() -> None:
    """So that nobody is told all is well by a doctor who sees nothing."""
    options = ["--rm", "-i", "--user", "0", "--pid", "host", "--network", "none"]
    options += ["--security-opt", "seccomp=unconfined"]
    program = Path(inside_program.__file__).read_bytes()
    words = ["facts", "0", "0.5", str(64 << 20), "/workspace", "/tmp"]
    done = subprocess.run(
        [
            "docker",
            "run",
            *options,
            "--entrypoint",
            "python3",
            "sandbox-secure:latest",
            "-",
            *words,
        ],
        input=program,
        capture_output=True,
        timeout=60,
        check=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    found = judge(facts, Promised(runtime="docker", host_namespaces={"pid": own_namespace()}))
    failed = {finding.name for finding in found if finding.state == State.FAILED}
    assert {"user", "capabilities", "no new privileges", "seccomp", "system calls", "namespaces",
            "writable paths", "disk limit", "process limit"} <= failed  # fmt: skip


def own_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def interpreter() -> str | None:
    """One like ours that another user can run."""
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    return str(system) if system.exists() else None


@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
@pytest.mark.skipif(os.geteuid() != 0 or interpreter() is None, reason="takes a second user")
def test_a_user_without_rights() -> None:
    """The command itself, as a user who can make no control groups, users or disks."""
    packages = [str(Path(sandbox_server.__file__).parents[1]), *filter(None, sys.path)]
    with tempfile.TemporaryDirectory(prefix="doctor-") as home:
        os.chown(home, 65534, 65534)
        done = subprocess.run(
            [interpreter() or "", "-c", "import sandbox_sdk.cli as c; c.main()", "doctor",
             "--security", "--json"],
            user=65534, group=65534, extra_groups=[], cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": home, "SANDBOX_RUNTIME": "bubblewrap",
                 "SANDBOX_STATE_DIR": f"{home}/state", "SANDBOX_MEMORY_LIMIT": "128m",
                 "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    told = json.loads(done.stdout)
    assert (told["ok"], done.returncode) == (True, 0), told
    states = {each["name"]: each["state"] for each in told["findings"]}
    assert states["capabilities"] == states["seccomp"] == states["user namespace"] == "ok"
    assert states["memory limit"] == states["cpu limit"] == "warning"


async def test_where_no_box_can_be_made(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/engine.sock")
    found = [each async for each in examine_security(load(runtime="docker", state_dir=state_dir))]
    assert found[-1].state == State.FAILED
    assert found[-1].fix
