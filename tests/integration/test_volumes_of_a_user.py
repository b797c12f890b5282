"""Volumes where the server is not root: plain folders, locked by the keepers of boxes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sandbox_server
from tests.contract.conftest import RUNTIMES
from tests.integration.test_start import interpreter

USER = 65534
SCRIPT = """
import json
import os
import signal
import time
from pathlib import Path
from sandbox_sdk import Conflict, DiskFull, LocalBackend, SandboxClient, VolumeNotFound

data = {"name": "lock", "path": "/workspace/data"}
backend = LocalBackend(volume_size="16m", volume_quota="40m")


def client(thread, mode="rw"):
    return SandboxClient(thread, backend=backend, volumes=[{**data, "mode": mode}])


def refused(error, work):
    try:
        work()
    except error as exc:
        return exc.message
    raise AssertionError(f"no {error.__name__}")


with client("first") as first:
    assert "not enforced" in first.health().volumes
    first.execute("echo kept > data/a; mkdir data/d; chmod 0 data/d", check=True)
    first.upload_bytes(b"up", "data/b")
    assert first.read_text("data/b") == "up"
    taken = first.checkpoint()
    first.execute("echo more >> data/a", check=True)
    first.rewind(taken)
    assert first.execute("cat data/a").output == "kept\\nmore\\n"
    assert "'lock' is in use: thread 'first' has it, rw" in refused(
        Conflict, client("second").create_session)
    refused(Conflict, lambda: first.delete_volume("lock"))
    (volume,) = first.volumes()
    assert (volume.name, volume.size, 0 < volume.used < 1 << 20) == ("lock", 16 << 20, True)
    first.cleanup()

    one, other = client("one", "ro"), client("other", "ro")
    for each in (one, other):
        assert each.execute("cat data/b; rm data/a").output.startswith("up")
        assert each.execute("cat data/a").output == "kept\\nmore\\n"
    refused(Conflict, client("second").create_session)
    one.cleanup()
    refused(Conflict, client("second").create_session)

    # The lock goes with the box, however that ends.
    state = Path(os.environ["SANDBOX_STATE_DIR"])
    for record in state.glob("boxes/*/box.json"):
        keeper = json.loads(record.read_text())["keeper"][0]
        os.kill(keeper, signal.SIGKILL)
        while Path(f"/proc/{keeper}").exists():
            time.sleep(0.01)
    with client("second") as second:
        assert second.execute("cat data/b").output == "up"
        second.execute("head -c 20M /dev/zero > data/large", check=True)
        assert first.volumes()[0].used > 16 << 20
        second.cleanup()
    assert "its size is 16 MiB" in refused(DiskFull, client("second").create_session)
    refused(DiskFull, lambda: first.create_volume("more", size="32m"))
    first.delete_volume("lock")
    assert first.volumes() == []
    refused(VolumeNotFound, client("second", "ro").create_session)
print("fine")
"""


@pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
@pytest.mark.skipif(os.geteuid() != 0 or interpreter() is None, reason="takes a second user")
def test_volumes_of_a_user() -> None:
    installed = [path for path in sys.path if path.endswith("-packages")]
    packages = [str(Path(sandbox_server.__file__).parents[1]), *installed]
    with tempfile.TemporaryDirectory(prefix="volumes-") as home:
        os.chown(home, USER, USER)
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": home,
            "SANDBOX_RUNTIME": "bubblewrap",
            "SANDBOX_STATE_DIR": f"{home}/state",
            "PYTHONPATH": os.pathsep.join(packages),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [interpreter() or "", "-c", SCRIPT],
            user=USER, group=USER, extra_groups=[], cwd="/", env=env,
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
