"""kill -9 of the server, and of boxes, while they have volumes: what was written stays, and nobody
has a volume whose box is gone."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import Conflict
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target, checked
from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.fsmount import mount_nowhere
from sandbox_server.volumes import ext4
from tests.contract.conftest import RUNTIMES, make_runtime
from tests.server_process import ServerProcess, running

DATA = {"name": "data", "path": "/workspace/data"}
READ = {**DATA, "mode": "ro"}


def wanted(thread: str, volume: dict[str, Any]) -> CreateSessionRequest:
    return checked(CreateSessionRequest, thread_id=thread, volumes=[volume])


async def run(client: RemoteBackend, thread: str, command: str) -> str:
    return (await client.execute(ExecuteRequest(thread_id=thread, command=command))).output


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_the_server_is_killed(runtime: str, state_dir: Path) -> None:
    async with (
        running(runtime, state_dir, SANDBOX_VOLUME_SIZE="32m") as server,
        RemoteBackend(server.url, retry_for_s=20) as client,
    ):
        await server.ready()
        await client.create_session(wanted("first", DATA))
        await run(client, "first", "echo one > data/a")
        await restarted(server)

        # The box has gone on, and has the volume still.
        assert await run(client, "first", "echo two >> data/a; cat data/a") == "one\ntwo\n"
        with pytest.raises(Conflict, match="thread 'first' has it, rw"):
            await client.create_session(wanted("second", READ))
        (volume,) = (await client.volumes()).volumes
        assert [use.thread_id for use in volume.mounted_by] == ["first"]

        # Without a server that knows it, the kernel does.
        await server.stop()
        (image,) = state_dir.glob("volumes/*/data.img")
        use = loop_disk.use_of(image)
        assert use is not None
        assert (use.label.partition(" ")[2], use.read_only) == ("first", False)
        async with make_runtime(runtime, state_dir) as boxes:
            for box in await boxes.boxes(server.name):
                await box.destroy()
        await free(image)
        await server.start()
        await server.ready()
        await client.create_session(wanted("second", READ))
        assert await run(client, "second", "cat data/a") == "one\ntwo\n"
        await client.cleanup(Target(thread_id="second"))
        await client.delete_volume("data")
        assert not image.exists()


async def restarted(server: ServerProcess) -> None:
    await server.stop(signal.SIGKILL)
    await server.start()
    await server.ready()


async def free(image: Path) -> None:
    async with asyncio.timeout(20):
        while loop_disk.use_of(image) is not None:
            await asyncio.sleep(0.05)


@contextlib.contextmanager
def mounted(image: Path, *, read_only: bool = False) -> Iterator[int]:
    with loop_disk.attached(image, read_only=read_only) as attached:
        mount = mount_nowhere(attached.device, "ext4", ["ro"] if read_only else [])
        try:
            top = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=mount)
            yield top
            os.close(top)
        finally:
            os.close(mount)


def test_a_disk_that_was_not_unmounted(tmp_path: Path) -> None:
    """What a crash of the machine leaves: read-only, nobody could mend it."""
    image, crashed = tmp_path / "data.img", tmp_path / "crashed.img"
    ext4.make(image, 32 << 20)
    with mounted(image) as top:
        os.mkdir("there", dir_fd=top)
        os.fsync(top)
        shutil.copy(image, crashed)
    with pytest.raises(OSError, match="Read-only"), mounted(crashed, read_only=True):
        pass
    ext4.repair(crashed)
    with mounted(crashed, read_only=True) as top:
        assert os.listdir(top) == ["there"]
    crashed.write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match="e2fsck failed"):
        ext4.repair(crashed)


async def test_the_server_is_killed_while_it_makes_a_volume(state_dir: Path) -> None:
    (runtime,) = [name for name in ("bubblewrap", *RUNTIMES) if name in RUNTIMES][:1]
    async with (
        running(runtime, state_dir, SANDBOX_VOLUME_SIZE="32m") as server,
        RemoteBackend(server.url, retry_for_s=20) as client,
    ):
        await server.ready()
        for number in range(5):
            making = asyncio.create_task(client.create_session(wanted(f"t-{number}", DATA)))
            await asyncio.sleep(0.01 * number)
            os.kill(server.pid, signal.SIGKILL)
            await restarted(server)
            await asyncio.gather(making, return_exceptions=True)
            for session in (await client.sessions()).sessions:
                await client.cleanup(Target(session_id=session.session_id))
            for volume in (await client.volumes()).volumes:
                await client.delete_volume(volume.name)
        await client.create_session(wanted("last", DATA))
        assert await run(client, "last", "echo fine > data/a; cat data/a") == "fine\n"
        await client.cleanup(Target(thread_id="last"))
        await client.delete_volume("data")
