"""The two ways to the warden of a container lead to the same place."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiodocker
import pytest

from sandbox_sdk.protocol.errors import SessionLost
from sandbox_server.runtime import cpu_limit
from sandbox_server.runtime.base import BoxSpec, Limits
from sandbox_server.runtime.docker import DockerRuntime
from sandbox_server.runtime.docker.config import container_name
from sandbox_server.runtime.docker.runtime import DockerBox
from sandbox_server.runtime.docker.stream import (
    ExecStream,
    NetnsStream,
    NoNetnsStream,
    open_netns_stream,
)
from sandbox_server.runtime.warden import WardenClient
from tests.contract.conftest import RUNTIMES
from tests.run import run_owner

LOCAL = os.environ.get("DOCKER_HOST", "unix:").startswith("unix:") and os.geteuid() == 0

pytestmark = pytest.mark.skipif(
    "docker" not in RUNTIMES or not LOCAL, reason="no engine on this machine, or not root"
)


@pytest.fixture
async def box() -> AsyncIterator[DockerBox]:
    runtime = DockerRuntime()
    async with runtime:
        made = await runtime.create(BoxSpec(owner=run_owner("near"), deadman_s=300))
        try:
            yield made
        finally:
            await made.destroy()


async def pid_of(box: DockerBox) -> tuple[int, str]:
    async with aiodocker.Docker() as docker:
        about = await docker.containers.container(container_name(box.id)).show()
    return int(about["State"]["Pid"]), str(about["Id"])


async def test_the_short_way_is_taken_here(box: DockerBox) -> None:
    network = os.readlink("/proc/self/ns/net")
    stream = await box.open_stream()
    assert isinstance(stream, NetnsStream)
    await stream.close()
    assert {
        os.readlink(f"/proc/self/task/{task}/ns/net") for task in os.listdir("/proc/self/task")
    } == {network}


async def test_a_box_may_burst_where_the_kernel_has_it(box: DockerBox) -> None:
    pid, _ = await pid_of(box)
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    group = next((line for line in lines if "cpu" in line.split(":")[1].split(",")), lines[-1])
    parent = "cpu" if group.split(":")[1] else ""
    files = [
        Path("/sys/fs/cgroup", parent, group.split(":", 2)[2].lstrip("/"), name)
        for name in cpu_limit.FILES.values()
    ]
    burst = [file for file in files if file.exists()]
    assert all(file.read_text() == "0\n" for file in burst)
    await (await box.open_stream()).close()
    quota = cpu_limit.quota_us(Limits().cpus)
    assert all(file.read_text() == f"{quota}\n" for file in burst)


async def test_both_ways_lead_to_the_same_shell(
    box: DockerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with WardenClient(box) as client:
        await client.run("x=set")
    monkeypatch.setattr(box, "_same_machine", False)
    stream = await box.open_stream()
    assert isinstance(stream, ExecStream)
    await stream.close()
    async with WardenClient(box) as client:
        assert (await client.run("echo $x")).stdout == "set\n"


async def test_a_process_that_is_not_the_containers_is_no_way(box: DockerBox) -> None:
    pid, container_id = await pid_of(box)
    with pytest.raises(NoNetnsStream):
        await open_netns_stream(os.getpid(), container_id, gone="gone")
    with pytest.raises(NoNetnsStream):
        await open_netns_stream(pid, "0" * 64, gone="gone")
    with pytest.raises(NoNetnsStream):
        await open_netns_stream(1 << 22, container_id, gone="gone")


async def test_where_it_is_not_near_the_long_way_is_taken(
    box: DockerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_near(*_: object, **__: object) -> None:
        raise NoNetnsStream("not allowed")

    monkeypatch.setattr("sandbox_server.runtime.docker.runtime.open_netns_stream", not_near)
    async with WardenClient(box) as client:
        assert (await client.run("echo there")).stdout == "there\n"


async def test_a_warden_that_ends_meanwhile_is_told_as_lost(box: DockerBox) -> None:
    opening = [asyncio.create_task(box.open_stream()) for _ in range(3)]
    await box.destroy()
    for result in await asyncio.gather(*opening, return_exceptions=True):
        if not isinstance(result, BaseException):
            await result.close()
        else:
            assert isinstance(result, SessionLost)
    with pytest.raises(SessionLost):
        await box.open_stream()
