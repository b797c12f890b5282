"""What a server says when it starts with settings that cannot work, or mean nothing."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import sandbox_server
from sandbox_sdk import LocalBackend
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_sdk.protocol.models import CreateSessionRequest, Target
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.checks import check_start
from sandbox_server.main import open_service, serve
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES, state_dir

__all__ = ["state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
QUIET = {"runtime": "bubblewrap", "pool_size": 0, "min_pool_size": 0, "worker_id": "start"}


async def test_a_network_that_no_box_can_have(state_dir: Path) -> None:
    """It started, said that all limits hold, and no box ever came up."""
    settings = load(**QUIET, state_dir=state_dir, network="bridge")
    with pytest.raises(InvalidRequest, match="network=bridge needs the docker runtime"):
        async with open_service(settings):
            pass


async def test_an_environment_that_no_box_has(state_dir: Path) -> None:
    """It was ignored; one that stands for a policy still means something."""
    given = {**QUIET, "state_dir": state_dir, "policies": {"untrusted": "strict"}}
    settings = load(**given, environments={"node": "node:20", "untrusted": "x"})
    with pytest.raises(InvalidRequest, match="environments needs the docker runtime"):
        async with open_service(settings):
            pass
    settings = load(**given, environments={"untrusted": "x"}, destroy_on_exit=True)
    async with open_service(settings) as service:
        sandboxes = service.of(SOLE_TENANT)
        with pytest.raises(InvalidRequest, match="unknown environment 'unknown': there are"):
            await sandboxes.create_session(CreateSessionRequest(environment="unknown"))
        made = await sandboxes.create_session(CreateSessionRequest(environment="untrusted"))
        await sandboxes.cleanup(Target(session_id=made.session_id))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"image": "x"}, "image needs the docker runtime"),
        ({"docker_runtime": "runsc"}, "docker_runtime needs the docker runtime"),
        ({"network": "bridge"}, "network=bridge needs the docker runtime"),
    ],
)
async def test_what_a_program_asks_for_in_vain(
    state_dir: Path, given: dict[str, Any], told: str
) -> None:
    """In-process as on a server: each was ignored, or no box ever came up."""
    backend = LocalBackend(runtime="bubblewrap", state_dir=state_dir / "vain", **given)
    with pytest.raises(InvalidRequest, match=told):
        await backend.__aenter__()


async def test_falling_back_loses_no_image(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/engine.sock")
    monkeypatch.setenv("SANDBOX_IMAGE", "x")
    told = (
        "SANDBOX_IMAGE needs the docker runtime: start a Docker engine .*, or unset it; .*no/engin"
    )
    with pytest.raises(InvalidRequest, match=told):
        await check_start(load(**{**QUIET, "runtime": "auto"}, state_dir=state_dir))


@pytest.mark.skipif("gvisor" not in RUNTIMES, reason="no gVisor here")
async def test_what_gvisor_does_not_have(state_dir: Path) -> None:
    given = {**QUIET, "runtime": "docker", "docker_runtime": "runsc", "state_dir": state_dir}
    await check_start(load(**given))
    with pytest.raises(InvalidRequest, match="boxes on gVisor have no network"):
        await check_start(load(**given, network="bridge"))
    with pytest.raises(InvalidRequest, match="pids_limit has no effect here: gVisor does not"):
        await check_start(load(**given, pids_limit=64))


def interpreter() -> str | None:
    """One like ours that another user can run."""
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    return str(system) if system.exists() else None


@pytest.mark.skipif(os.geteuid() != 0 or interpreter() is None, reason="takes a second user")
def test_a_limit_that_an_ordinary_user_cannot_have() -> None:
    # Without the standard library of this interpreter: it has its own.
    installed = [path for path in sys.path if path.endswith("-packages")]
    packages = [str(Path(sandbox_server.__file__).parents[1]), *installed]
    with tempfile.TemporaryDirectory(prefix="start-") as home:
        os.chown(home, 65534, 65534)

        def start(**settings: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [interpreter() or "", "-c", "import sandbox_sdk.cli as c; c.main()", "serve",
                 "--print-config"],
                user=65534, group=65534, extra_groups=[], cwd="/",
                env={"PATH": "/usr/bin:/bin", "HOME": home, "SANDBOX_RUNTIME": "bubblewrap",
                     "SANDBOX_STATE_DIR": f"{home}/state", **settings,
                     "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

        refused = start(SANDBOX_CPU_LIMIT="2")
        assert refused.returncode == 125
        assert "SANDBOX_CPU_LIMIT has no effect here: not limited: no writable" in refused.stderr
        assert "unset it" in refused.stderr
        weaker = start(SANDBOX_MEMORY_LIMIT="128m")
        assert (weaker.returncode, weaker.stderr) == (0, "")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"api_keys": "no-tenant"}, "api_keys: API key 1"),
        ({"host": "no.such.host.invalid", "insecure": True}, "cannot listen on no.such"),
        ({"policy": "/no/rules.yaml"}, "/no/rules.yaml: the rule file cannot be read"),
        ({"environments": {"a": "x"}, "policies": {"a": "nope"}}, "nope: the rule file"),
        ({"audit_log": "/dev"}, "audit_log: /dev is not a file"),
        ({"state_dir": "/dev/null"}, "state_dir: /dev/null is not a folder"),
        ({"role": "worker", "redis_url": "http://:hush@r"}, "SANDBOX_REDIS_URL is not a URL"),
        ({"role": "coordinator", "redis_url": "redis://:hu/sh@r"}, "SANDBOX_REDIS_URL is not a"),
        ({"role": "worker", "redis_url": "redis+sentinel://h:x/s"}, "SANDBOX_REDIS_URL is not a"),
        ({"image": "x"}, "image needs the docker runtime"),
    ],
)
async def test_what_keeps_a_server_from_starting(
    state_dir: Path, given: dict[str, Any], told: str
) -> None:
    """The same by `serve` and by the check that opens no port and makes no box."""
    settings = load(**{**QUIET, "state_dir": state_dir, "port": 0, **given})
    for start in (check_start(settings), serve(settings, on_listening=_never)):
        with pytest.raises((InvalidRequest, RuntimeUnavailable), match=told) as raised:
            await start
        assert "hu" not in raised.value.message.replace("hush@host", "")


async def _never(url: str, tenants: Tenants, previews: object) -> None:
    raise AssertionError("it listens")


async def test_what_is_right_is_not_refused(state_dir: Path, tmp_path: Path) -> None:
    """And the check leaves nothing behind."""
    log = tmp_path / "logs" / "audit.log"
    await check_start(load(**QUIET, state_dir=tmp_path / "state", audit_log=log))
    assert not log.parent.exists()
    for url in ("redis://r", "rediss://r:1/2", "unix:///r", "redis+cluster://r:1",
                "redis+sentinel://a:1,b:2/service/0"):  # fmt: skip
        await check_start(load(role="coordinator", redis_url=url))


_PROGRAM = """
import asyncio, signal, sys
from sandbox_sdk import LocalBackend
from sandbox_sdk.protocol.models import ExecuteRequest, Target

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

async def main():
    async with LocalBackend(runtime="bubblewrap", pool_size=0, state_dir=sys.argv[1]) as sandboxes:
        for command in sys.argv[2:]:
            request = ExecuteRequest(thread_id="t", command=command)
            print((await sandboxes.execute(request)).output, end="")
        await sandboxes.cleanup(Target(thread_id="t"))

asyncio.run(main())
"""


def test_what_a_server_was_started_with_is_not_inherited(state_dir: Path) -> None:
    """As by `nohup`, or by `&` in a script: with ignored signals no shell can go on."""
    start = 'trap "" HUP INT QUIT TERM USR2; umask 077; exec "$@"'
    commands = ["echo $$", "echo $$", "trap -p HUP INT QUIT TERM USR2", "umask", "kill -USR1 $$"]
    ended = subprocess.run(
        ["sh", "-c", start, "sh", sys.executable, "-c", _PROGRAM, state_dir, *commands, "echo $$"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, second, umask, third = ended.stdout.split()
    assert first == second != third, ended
    assert umask == "0022"
