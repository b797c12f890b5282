"""What an engine enforces, read from what it tells of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sandbox_server.runtime.base import Enforcement

_GVISOR_MEMORY = (
    "a box over its memory limit ends as a whole (session_lost, never reason oom): gVisor is one"
    " process to the host"
)
_GVISOR_SYSCALLS = "filtered by gVisor's own kernel; the seccomp profile is not applied on top"


def enforcement(info: Mapping[str, object], *, no_disk: str, gvisor: bool) -> Enforcement:
    """no_disk: why /workspace has no hard limit, or an empty text."""
    seccomp = any(str(option).startswith("name=seccomp") for option in _options(info))
    return Enforcement(
        memory=_lacks(info, "MemoryLimit", "memory") or (_GVISOR_MEMORY if gvisor else ""),
        cpu=_lacks(info, "CpuCfsQuota", "CPU quota"),
        pids=_lacks(info, "PidsLimit", "pids"),
        disk=f"/workspace is a plain volume without a limit: {no_disk}" if no_disk else "",
        inodes=f"/workspace has no inode limit: {no_disk}" if no_disk else "",
        syscalls=_GVISOR_SYSCALLS
        if gvisor
        else ("" if seccomp else "the engine was built or started without seccomp"),
    )


def obstacle_to_disks(info: Mapping[str, object], *, unix_socket: bool) -> str:
    """Why an engine cannot mount a loop device that is attached here, or an empty text."""
    if not unix_socket or not _is_this_machine(info):
        return "the engine is on another machine"
    for name in ("rootless", "userns"):
        if any(str(option).startswith(f"name={name}") for option in _options(info)):
            return f"the engine runs with {name}"
    return ""


def _is_this_machine(info: Mapping[str, object]) -> bool:
    """A unix socket may lead into a virtual machine. Neither fact is hidden by a container."""
    memory = Path("/proc/meminfo").read_text().split()[1]
    same_kernel = info.get("KernelVersion") == os.uname().release
    return same_kernel and info.get("MemTotal") == int(memory) * 1024


def _options(info: Mapping[str, object]) -> list[object]:
    options = info.get("SecurityOptions")
    return list(options) if isinstance(options, list) else []


def _lacks(info: Mapping[str, object], key: str, what: str) -> str:
    return "" if info.get(key) else f"the engine's control groups have no {what} limit"
