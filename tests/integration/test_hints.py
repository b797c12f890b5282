"""What programs really say in a box where they meet a wall, and the hint that comes with it."""

from pathlib import Path

import pytest

from sandbox_sdk.integrations.tools import AsyncSandboxTools
from sandbox_sdk.protocol.models import ExecuteRequest
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.contract.stand import lone_standing, open_stand

__all__ = ["state_dir"]

WALLS = {
    "curl http://example.com": "no network",
    "curl -s http://example.com": "no network",
    "curl -sS http://192.0.2.1": "no network",
    "git clone https://example.com/a": "no network",
    "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'": "no network",
    "sudo ls": "nobody is root",
    "apt-get install -y jq": "system packages cannot be installed",
    "dnf install jq": "system packages cannot be installed",
    "touch /etc/x": "only /workspace, /tmp and the home",
    "head -c 200M /dev/zero > /tmp/big": "/workspace has 1 GiB; /tmp (128 MiB)",
    "docker ps": "no containers",
    "systemctl status": "no service manager",
}
FINE = ["ls /nowhere", "curl -sS http://localhost:1", "grep x /dev/null", "exit 6"]
TRIES = "python3 -m pip install sandbox-no-such-package"
FORKS = "for i in $(seq 400); do sleep 1000 & done"


@pytest.mark.parametrize("name", [name for name in RUNTIMES if name != "gvisor"])
async def test_walls_of_a_real_box(name: str, state_dir: Path, subtests: pytest.Subtests) -> None:
    async with (
        make_runtime(name, state_dir) as runtime,
        lone_standing() as standing,
        open_stand(runtime, standing) as stand,
    ):
        for command, told in WALLS.items():
            with subtests.test(command):
                result = await stand.sandboxes.execute(
                    ExecuteRequest(thread_id="t", command=command)
                )
                assert told in (result.hint or ""), result.output
        for command in FINE:
            with subtests.test(command):
                result = await stand.sandboxes.execute(
                    ExecuteRequest(thread_id="t", command=command)
                )
                assert (result.hint, result.exit_code != 0) == (None, True)
        with subtests.test("pip does not try again and again"):
            result = await stand.sandboxes.execute(ExecuteRequest(thread_id="t", command=TRIES))
            assert "Retrying" not in result.output
            assert "--no-index --find-links" in (result.hint or ""), result.output
        with subtests.test("the limit of processes"):
            tools = AsyncSandboxTools(backend=stand.sandboxes)
            # bash tries to fork for half a minute.
            given = {"command": FORKS, "timeout": 8}
            reply = await tools.dispatch("bash", given, thread_id="t")
            assert "fork: retry: Resource temporarily unavailable" in reply.text
            assert "[hint: the sandbox is at its limit of 256 processes" in reply.text
