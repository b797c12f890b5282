"""Which limits an engine enforces, according to `docker info`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sandbox_server.runtime.base import Enforcement

_GVISOR = {
    "memory": "a box over its memory limit ends as a whole (session_lost instead of reason oom):"
    " gVisor is one process to the host",
    "pids": "gVisor does not count the processes of a box: a fork bomb ends when the box is out of"
    " memory or destroyed; the engine's limit bounds only gVisor's own threads",
    "inodes": "gVisor bounds the bytes of /tmp, /dev/shm and the home, not their number of files",
    "syscalls": "filtered by gVisor's own kernel, not by the seccomp profile; PID 1 is less safe:"
    " a process of the box can end its warden (session_lost) and see its descriptors",
}


def enforcement(info: Mapping[str, object], *, no_disk: str, gvisor: bool) -> Enforcement:
    """no_disk: why /workspace has no size limit; empty if it has one."""
    lacking = {
        "memory": _lacks(info, "MemoryLimit", "memory"),
        "cpu": _lacks(info, "CpuCfsQuota", "CPU quota"),
        "pids": _lacks(info, "PidsLimit", "pids"),
        "disk": f"only the size of each file, /workspace is a plain volume: {no_disk}"
        if no_disk
        else "",
        "inodes": f"/workspace has no inode limit: {no_disk}" if no_disk else "",
        "syscalls": "" if _has_option(info, "seccomp") else "the engine runs without seccomp",
    }
    absent = {name for name in ("memory", "cpu", "pids") if lacking[name]}
    if gvisor:
        absent.add("pids")
        lacking |= {name: lacking[name] or why for name, why in _GVISOR.items()}
    return Enforcement(**lacking, absent=frozenset(absent))


def obstacle_to_disks(info: Mapping[str, object], *, unix_socket: bool) -> str:
    """Why an engine cannot mount a loop device of this machine; empty if it can."""
    if not unix_socket or not _is_this_machine(info):
        return "the engine is on another machine"
    for name in ("rootless", "userns"):
        if _has_option(info, name):
            return f"the engine runs with {name}"
    return ""


def obstacle_to_burst(info: Mapping[str, object], *, unix_socket: bool) -> str:
    """Why this process cannot write to the control groups of boxes; empty if it can."""
    if not unix_socket or not _is_this_machine(info):
        return "the engine is on another machine"
    if os.geteuid() != 0:
        return "the server is not root"
    return ""


def _is_this_machine(info: Mapping[str, object]) -> bool:
    """Compare kernel and memory size: a unix socket may lead into a virtual machine. Both values
    are the host's even inside a container."""
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    same_kernel = info.get("KernelVersion") == os.uname().release
    return same_kernel and info.get("MemTotal") == memory_kib * 1024


def _has_option(info: Mapping[str, object], name: str) -> bool:
    options = info.get("SecurityOptions")
    return isinstance(options, list) and any(
        str(option).startswith(f"name={name}") for option in options
    )


def _lacks(info: Mapping[str, object], key: str, what: str) -> str:
    return "" if info.get(key) else f"the engine's control groups have no {what} limit"
