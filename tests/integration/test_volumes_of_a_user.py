"""Volumes where the server is not root: plain folders, locked by the keepers of boxes."""

from tests.integration.ordinary_user import needs_a_second_user, run_as_a_user

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


@needs_a_second_user
def test_volumes_of_a_user() -> None:
    run_as_a_user(SCRIPT)
