"""What the engine is told about a box, line by line, and what it answers."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import SessionLost
from sandbox_server.runtime.base import BoxSpec, Limits
from sandbox_server.runtime.docker import prepare
from sandbox_server.runtime.docker.config import (
    PYTHON,
    BoxImage,
    container_config,
    container_name,
    relay_command,
)
from sandbox_server.runtime.docker.enforcement import (
    enforcement,
    obstacle_to_burst,
    obstacle_to_disks,
)
from sandbox_server.runtime.docker.stream import Demultiplexer, ExecStream
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_server.runtime.warden.zipapp import warden_version, warden_zipapp

IMAGE = BoxImage(name="sandbox-box:abc", hosts_file="/layer/usr/lib/sandbox/hosts")


def config(spec=None, *, image=IMAGE, **options):
    spec = spec or BoxSpec(owner="worker-1")
    return container_config(spec, box_id="b1", created_at=12.5, image=image, **options)


def host(spec=None, **options):
    return config(spec, **options)["HostConfig"]


def mount_at(target, mounts):
    return next(mount for mount in mounts if mount["Target"] == target)


def test_the_warden_is_pid_1_and_runs_as_the_user():
    made = config(BoxSpec(owner="o", deadman_s=90.5))
    warden = [PYTHON, "-I", "-S", "/usr/lib/sandbox/warden.pyz"]
    about = ["box=b1", f"build={warden_version()}", "deadman_s=90.5"]
    limits = ["pids=256", "open_files=4096"]
    assert made["Entrypoint"] == [*warden, "pid1", *about, *limits]
    assert made["User"] == "1000:1000"
    assert made["WorkingDir"] == "/workspace"
    assert made["Hostname"] == "sandbox"
    assert made["HostConfig"]["Init"] is False


def test_an_images_own_health_check_never_runs():
    assert config()["Healthcheck"] == {"Test": ["NONE"]}


def test_the_relay_runs_by_an_absolute_path():
    assert relay_command(PYTHON)[0].startswith("/usr/")
    assert relay_command(PYTHON)[-1] == "relay"


def test_privileges_are_dropped():
    made = host()
    assert made["CapDrop"] == ["ALL"]
    assert "CapAdd" not in made
    assert "Privileged" not in made
    assert made["ReadonlyRootfs"] is True
    assert made["IpcMode"] == "none"
    assert made["CgroupnsMode"] == "private"
    assert "no-new-privileges" in made["SecurityOpt"]
    assert {"/proc/kcore", "/proc/cmdline", "/sys/firmware"} <= set(made["MaskedPaths"])


def test_the_seccomp_profile_is_sent_as_json():
    (option,) = (o for o in host()["SecurityOpt"] if o.startswith("seccomp="))
    profile = json.loads(option.removeprefix("seccomp="))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"


def test_limits_are_hard():
    limits = Limits(memory_bytes=1 << 28, cpus=1.5, pids=50, open_files=99)
    made = host(BoxSpec(owner="o", limits=limits))
    assert made["Memory"] == made["MemorySwap"] == 1 << 28
    assert made["CpuQuota"] == 1.5 * made["CpuPeriod"]
    assert made["PidsLimit"] == 50
    assert made["OomKillDisable"] is False
    assert {"Name": "nofile", "Soft": 198, "Hard": 198} in made["Ulimits"]
    assert {"Name": "core", "Soft": 0, "Hard": 0} in made["Ulimits"]
    largest = (1 << 30) + (1 << 20)
    assert {"Name": "fsize", "Soft": largest, "Hard": largest} in made["Ulimits"]


def test_nothing_stays_behind():
    made = host()
    assert made["AutoRemove"] is True
    assert made["LogConfig"] == {"Type": "none"}
    assert "Source" not in mount_at("/workspace", made["Mounts"]), "a named volume would stay"


@pytest.mark.parametrize(
    ("path", "size"), [("/tmp", 111), ("/dev/shm", 222), ("/home/sandboxuser", 333)]
)
def test_memory_backed_places_are_bounded(path, size):
    limits = Limits(tmp_bytes=111, shm_bytes=222, home_bytes=333, inodes=44)
    options = host(BoxSpec(owner="o", limits=limits))["Tmpfs"][path].split(",")
    assert {f"size={size}", "nr_inodes=44", "nosuid", "nodev"} <= set(options)


def test_tmp_may_execute_and_shared_memory_may_not():
    tmpfs = host()["Tmpfs"]
    assert "exec" in tmpfs["/tmp"].split(",")
    assert "noexec" in tmpfs["/dev/shm"].split(",")


def test_a_device_becomes_the_workspace():
    mount = mount_at("/workspace", host(device="/dev/loop7")["Mounts"])
    driver = mount["VolumeOptions"]["DriverConfig"]
    assert driver["Name"] == "local"
    assert driver["Options"]["type"] == "ext4"
    assert driver["Options"]["device"] == "/dev/loop7"
    assert {"nosuid", "nodev"} <= set(driver["Options"]["o"].split(","))


def test_without_a_device_the_workspace_is_a_plain_volume():
    assert "DriverConfig" not in mount_at("/workspace", host()["Mounts"])["VolumeOptions"]


def test_volumes_an_image_declares_cannot_be_written():
    made = host(image=BoxImage(name="i", volumes=("/data", "/workspace", "/tmp/")))
    assert "ro" in made["Tmpfs"]["/data"].split(",")
    assert "rw" in made["Tmpfs"]["/tmp"].split(",")
    assert "/workspace" not in made["Tmpfs"]
    assert "/tmp/" not in made["Tmpfs"]


def test_a_box_without_network_has_the_kernels_empty_one_and_a_hosts_file():
    made = config()
    assert made["NetworkDisabled"] is True
    assert made["HostConfig"]["NetworkMode"] == "none"
    hosts = mount_at("/etc/hosts", made["HostConfig"]["Mounts"])
    assert hosts["Source"] == IMAGE.hosts_file
    assert hosts["ReadOnly"] is True


@pytest.mark.parametrize(
    ("network", "image"), [("bridge", IMAGE), ("none", BoxImage(name="no hosts file"))]
)
def test_else_the_engine_sets_the_network_up(network, image):
    made = config(BoxSpec(owner="o", network=network), image=image)
    assert made["NetworkDisabled"] is False
    assert made["HostConfig"]["NetworkMode"] == network
    assert all(mount["Type"] == "volume" for mount in made["HostConfig"]["Mounts"])


def test_labels_tell_all_that_is_needed_to_adopt_a_box():
    labels = config(BoxSpec(owner="worker-1"))["Labels"]
    assert labels["sandbox"] == "1"
    assert labels["sandbox.owner"] == "worker-1"
    assert labels["sandbox.box"] == "b1"
    assert labels["sandbox.created"] == "12.500"
    assert container_name("b1") == "sandbox-b1"


def test_the_specs_environment_wins():
    env = dict(
        line.split("=", 1) for line in config(BoxSpec(owner="o", env={"TERM": "a=b"}))["Env"]
    )
    assert env["TERM"] == "a=b"
    assert env["HOME"] == "/home/sandboxuser"
    assert env["USER"] == env["LOGNAME"] == "sandboxuser"


def test_pip_and_npm_fail_at_once_only_without_a_network():
    alone, reaching = (
        config(BoxSpec(owner="o", network=name))["Env"] for name in ("none", "bridge")
    )
    assert {"PIP_RETRIES=0", "NPM_CONFIG_FETCH_RETRIES=0"} <= set(alone)
    assert not [line for line in reaching if "RETRIES" in line or "proxy" in line.lower()]


@pytest.mark.parametrize("network", ["allowlist", "open"])
def test_a_box_behind_the_proxy_is_on_no_network(network):
    spec = BoxSpec(owner="o", network=network, network_env={"PIP_INDEX_URL": "https://a.test/"})
    made = config(spec)
    assert made["NetworkDisabled"] is True
    assert made["HostConfig"]["NetworkMode"] == "none"
    proxy = "http://127.0.0.1:3128"
    names = ("http_proxy", "https_proxy", "all_proxy")
    expected = {f"{name}={proxy}" for name in (*names, *map(str.upper, names))}
    expected |= {"no_proxy=localhost,127.0.0.1,::1", "NO_PROXY=localhost,127.0.0.1,::1"}
    assert {*expected, "PIP_INDEX_URL=https://a.test/"} <= set(made["Env"])


def test_another_runtime_of_the_engine():
    assert host(engine_runtime="runsc")["Runtime"] == "runsc"
    assert "Runtime" not in host()


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000])
def test_frames_arrive_in_any_pieces(size):
    frames = [(1, b"one"), (2, b"oops"), (1, b""), (1, b"t" * 300), (7, b"??"), (1, b"end")]
    data = b"".join(struct.pack(">BxxxI", stream, len(text)) + text for stream, text in frames)
    demultiplexer = Demultiplexer()
    out = b"".join(demultiplexer.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert out == b"one" + b"t" * 300 + b"end"
    assert demultiplexer.stderr == b"oops"


@pytest.mark.parametrize(
    "text",
    [b"OCI runtime exec failed: exec failed\r\n", b"container is not running\r\n", b"task 1"],
)
@pytest.mark.parametrize("framed", [True, False])
async def test_what_an_engine_says_in_place_of_the_relay_ends_the_stream(text, framed):
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        theirs.sendall(struct.pack(">BxxxI", 1, len(text)) + text if framed else text)
    client = WardenClient(DyingBox(ExecStream(reader, writer)))
    with pytest.raises(SessionLost):
        await client.run("true")


class DyingBox(WardenBox):
    def __init__(self, stream):
        super().__init__("b")
        self._stream = stream

    async def open_stream(self):
        return self._stream

    async def is_alive(self):
        return False

    async def destroy(self):
        pass


INFO = {
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "SecurityOptions": ["name=seccomp,profile=default"],
}


def test_a_full_engine_lacks_nothing():
    assert enforcement(INFO, no_disk="", gvisor=False).missing() == {}


def test_what_an_engine_lacks_is_said():
    assert set(enforcement({}, no_disk="why", gvisor=False).missing()) == {
        "memory", "cpu", "pids", "disk", "inodes", "syscalls",
    }  # fmt: skip
    assert "why" in enforcement(INFO, no_disk="why", gvisor=False).disk


def test_gvisor_limits_in_its_own_way():
    assert set(enforcement(INFO, no_disk="", gvisor=True).missing()) == {
        "inodes", "memory", "pids", "syscalls",
    }  # fmt: skip


@pytest.mark.parametrize("option", ["name=rootless", "name=userns"])
def test_disks_need_an_engine_that_is_root_here(option):
    assert obstacle_to_disks(INFO, unix_socket=False)
    assert obstacle_to_disks({**INFO, "KernelVersion": "of another machine"}, unix_socket=True)
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    here = {**INFO, "KernelVersion": os.uname().release, "MemTotal": memory}
    assert obstacle_to_disks(here, unix_socket=True) == ""
    assert obstacle_to_disks({**here, "SecurityOptions": [option]}, unix_socket=True)


def test_the_burst_of_boxes_needs_root_on_the_engines_machine(monkeypatch):
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    here = {**INFO, "KernelVersion": os.uname().release, "MemTotal": memory}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert obstacle_to_burst(here, unix_socket=True) == ""
    assert "another machine" in obstacle_to_burst(here, unix_socket=False)
    assert "another machine" in obstacle_to_burst(INFO, unix_socket=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in obstacle_to_burst(here, unix_socket=True)


def test_another_user_with_the_number_of_the_boxs_user_is_replaced(tmp_path):
    accounts = tmp_path / "passwd"
    accounts.write_text("root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n")
    prepare.replace_user(str(accounts), "sandboxuser:x:1000:1000::/home:/bin/bash")
    lines = accounts.read_text().splitlines()
    assert lines == ["root:x:0:0::/root:/bin/sh", "sandboxuser:x:1000:1000::/home:/bin/bash"]


def test_the_compiled_warden_runs(tmp_path):
    archive = tmp_path / "warden.pyz"
    archive.write_bytes(warden_zipapp())
    prepare.compile_zipapp(str(archive))
    with zipfile.ZipFile(archive) as compiled:
        assert not [name for name in compiled.namelist() if name.endswith(".py")]
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(archive), "nothing"], capture_output=True, text=True
    )
    assert "usage: warden.pyz" in done.stderr
