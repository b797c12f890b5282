"""The container configuration of a box, as the engine's create call takes it. Pure functions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime import cpu_limit
from sandbox_server.runtime.base import ENVIRONMENT, VOLUME_OPTIONS, BoxSpec, BoxVolume, Limits
from sandbox_server.runtime.gpus import GpuUse
from sandbox_server.runtime.hidden import masked_paths
from sandbox_server.runtime.loop_disk import MOUNT_FLAGS, MOUNT_OPTIONS
from sandbox_server.runtime.warden.zipapp import warden_arguments

FOLDER = "/usr/lib/sandbox"
"""The warden's folder in a derived image."""
PYTHON = f"{FOLDER}/python3"
"""Not readable by the box's user, so its process is not dumpable. Absolute, because PATH in a box
may start with folders that its user can write to."""
READABLE_PYTHON = f"{FOLDER}/python3-readable"
"""For gVisor, which cannot execute unreadable files."""
UID = 1000
USER = f"{UID}:{UID}"

LABEL_MARK = "sandbox"
LABEL_OWNER = "sandbox.owner"
LABEL_BOX = "sandbox.box"
LABEL_CREATED = "sandbox.created"
LABEL_PYTHON = "sandbox.python"
LABEL_GPUS = "sandbox.gpus"
LABEL_DISK = "sandbox.disk"

_HOST_TASKS = 32
"""Host threads per process of a box, for OCI runtimes such as gVisor: it keeps several for each
process, and at its limit it crashes instead of refusing one. With 16, some 70 processes at once
crashed it; with 32, the box runs out of memory first."""


@dataclass(frozen=True, kw_only=True)
class BoxImage:
    """An image boxes can be made from."""

    name: str
    volumes: tuple[str, ...] = ()
    """Paths that the image declares as volumes."""
    hosts_file: str = ""
    """Path on the engine's machine of a hosts file for boxes without a network; may be empty."""


def container_name(box_id: str) -> str:
    return f"sandbox-{box_id}"


def relay_command(python: str) -> list[str]:
    return [*_warden(python), "relay"]


def _warden(python: str) -> list[str]:
    return [python, "-I", "-S", f"{FOLDER}/warden.pyz"]


def container_config(
    spec: BoxSpec,
    *,
    box_id: str,
    created_at: float,
    image: BoxImage,
    device: str | None = None,
    disk: str = "",
    engine_runtime: str | None = None,
    python: str = PYTHON,
    gpus: GpuUse | None = None,
) -> dict[str, Any]:
    """The body of the engine's create call.

    device: a block device with the file system of /workspace; None for a plain volume.
    disk: its handle.
    """
    env = {**ENVIRONMENT, **spec.user.variables, **spec.network_variables(), **spec.env}
    return {
        "Image": image.name,
        "Entrypoint": [*_warden(python), "pid1", *warden_arguments(spec, box_id)],
        "Cmd": [],
        "User": USER,
        "Hostname": "sandbox",
        "WorkingDir": WORKSPACE,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": {
            LABEL_MARK: "1",
            LABEL_OWNER: spec.owner,
            LABEL_BOX: box_id,
            LABEL_CREATED: f"{created_at:.3f}",
            LABEL_PYTHON: python,
            **({LABEL_DISK: disk} if disk else {}),
            **({LABEL_GPUS: str(gpus)} if gpus else {}),
        },
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": _is_unplugged(spec, image),
        "HostConfig": {
            **_host_config(spec, image, device),
            **(_gpus(gpus) if gpus else {}),
            **(
                {"Runtime": engine_runtime, "PidsLimit": spec.limits.pids * _HOST_TASKS}
                if engine_runtime
                else {}
            ),
        },
    }


def _gpus(use: GpuUse) -> dict[str, Any]:
    ids = [str(number) for number in use.numbers]
    return {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]}


def _host_config(spec: BoxSpec, image: BoxImage, device: str | None) -> dict[str, Any]:
    return {
        **_isolation(spec),
        **_limits(spec),
        "Tmpfs": {**_sealed(image.volumes), **_tmpfs(spec.limits, spec.user.home)},
        "Mounts": _mounts(spec, image, device),
        "AutoRemove": True,
        "LogConfig": {"Type": "none"},
        "Init": False,
    }


def _is_unplugged(spec: BoxSpec, image: BoxImage) -> bool:
    """Whether to skip the engine's network "none" as well, which halves the start time.

    The box then has an empty network namespace. We mount a hosts file ourselves, since without
    one localhost does not resolve.
    """
    return not spec.has_interface and bool(image.hosts_file)


def _mounts(spec: BoxSpec, image: BoxImage, device: str | None) -> list[dict[str, Any]]:
    mounts = [_workspace(spec, device), *(_volume(spec, each) for each in spec.volumes)]
    if _is_unplugged(spec, image):
        mounts.append(
            {"Type": "bind", "Source": image.hosts_file, "Target": "/etc/hosts", "ReadOnly": True}
        )
    return mounts


def _isolation(spec: BoxSpec) -> dict[str, Any]:
    return {
        "NetworkMode": "bridge" if spec.has_interface else "none",
        "IpcMode": "none",
        "CgroupnsMode": "private",
        "ReadonlyRootfs": True,
        "MaskedPaths": masked_paths(),
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
    }


def _limits(spec: BoxSpec) -> dict[str, Any]:
    limits = spec.limits
    return {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "CpuPeriod": cpu_limit.PERIOD_US,
        "CpuQuota": cpu_limit.quota_us(limits.cpus),
        "PidsLimit": limits.pids,
        "OomKillDisable": False,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.warden_files, "Hard": limits.warden_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": spec.file_bytes, "Hard": spec.file_bytes},
        ],
    }


def _tmpfs(limits: Limits, home: str) -> dict[str, str]:
    common = f"nosuid,nodev,nr_inodes={limits.inodes}"
    owner = "uid=1000,gid=1000"
    return {
        "/dev/mqueue": "ro,nosuid,nodev,noexec,size=4k",
        "/tmp": f"rw,exec,{common},size={limits.tmp_bytes},mode=1777",
        "/dev/shm": f"rw,noexec,{common},size={limits.shm_bytes},mode=1777",
        home: f"rw,exec,{common},size={limits.home_bytes},mode=0755,{owner}",
    }


def _workspace(spec: BoxSpec, device: str | None) -> dict[str, Any]:
    """An anonymous volume, removed with its container. The engine copies the content and owner of
    the image's /workspace into it."""
    volume: dict[str, Any] = {"Labels": {LABEL_MARK: "1", LABEL_OWNER: spec.owner}}
    if device is not None:
        options = {"type": "ext4", "device": device, "o": MOUNT_OPTIONS}
        volume["DriverConfig"] = {"Name": "local", "Options": options}
        volume["NoCopy"] = spec.disk is not None
    return {"Type": "volume", "Target": WORKSPACE, "VolumeOptions": volume}


def _volume(spec: BoxSpec, volume: BoxVolume) -> dict[str, Any]:
    """To the engine it is an anonymous volume, too, of which it removes the mount afterwards. Such
    a one cannot be ReadOnly, but its file system can."""
    if volume.source:
        return {
            "Type": "bind",
            "Source": volume.source,
            "Target": volume.path,
            "ReadOnly": volume.read_only,
            "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
        }
    flags = f"{'ro' if volume.read_only else 'rw'},{','.join(sorted(MOUNT_FLAGS))}"
    options = {"type": "ext4", "device": volume.device, "o": f"{flags},{VOLUME_OPTIONS}"}
    return {
        "Type": "volume",
        "Target": volume.path,
        "VolumeOptions": {
            "Labels": {LABEL_MARK: "1", LABEL_OWNER: spec.owner},
            "DriverConfig": {"Name": "local", "Options": options},
            "NoCopy": True,
        },
    }


def _sealed(image_volumes: tuple[str, ...]) -> dict[str, str]:
    """Empty read-only mounts over the image's volumes, which would be writable without a limit."""
    paths = {path.rstrip("/") for path in image_volumes} - {WORKSPACE}
    return dict.fromkeys(sorted(paths), "ro,nosuid,nodev,noexec,size=4k")


@cache
def seccomp_profile() -> str:
    text = files("sandbox_server.runtime.docker").joinpath("seccomp.json").read_text()
    return json.dumps(json.loads(text), separators=(",", ":"))
