"""Resource usage of the box and its OOM kills, from its cgroup.

Under Docker the cgroup's files are in /sys/fs/cgroup of the box; an embedded box has no /sys, so
the server opens the files and passes the descriptors in. Values without a file are None.
"""

import os
from typing import Any, Dict, Mapping, Optional

from . import processes
from .paths import VOLUMES
from .state import WORKSPACE

_PATHS = {
    "oom": ("memory.events", "memory/memory.oom_control"),
    "memory": ("memory.current", "memory/memory.usage_in_bytes"),
    "cpu": ("cpu.stat", "cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage"),
    "pids": ("pids.current", "pids/pids.current"),
}
_WALK_LIMIT = 20_000


class Meter:
    def __init__(self, fds: Mapping[str, int], *, max_pids: int) -> None:
        self._fds = dict(fds)
        self._max_pids = max_pids
        if not self._fds:
            for name, paths in _PATHS.items():
                for path in paths:
                    try:
                        flags = os.O_RDONLY | os.O_CLOEXEC
                        self._fds[name] = os.open("/sys/fs/cgroup/" + path, flags)
                        break
                    except OSError:
                        continue

    def oom_kills(self) -> Optional[int]:
        return _field(self._read("oom"), "oom_kill")

    def pids(self) -> int:
        pids = self._read("pids").strip()
        return int(pids) if pids.isdigit() else processes.count()

    def crowded(self) -> bool:
        """Whether few processes are left for a new command."""
        return self._max_pids > 0 and self.pids() > self._max_pids * 9 // 10

    def usage(self, *, disk: bool = True) -> Dict[str, Any]:
        """disk: whether to look how full it is, which may take a while."""
        cpu = self._read("cpu")
        usec = _field(cpu, "usage_usec")
        if usec is not None:
            cpu_s = usec / 1e6
        elif cpu.strip().isdigit():
            cpu_s = int(cpu) / 1e9
        else:
            cpu_s = processes.cpu_seconds()
        memory = self._read("memory").strip()
        return {
            "cpu_s": round(cpu_s, 3),
            "memory_bytes": int(memory) if memory.isdigit() else None,
            "pids": self.pids(),
            "disk_bytes": _disk_bytes() if disk else None,
        }

    def _read(self, name: str) -> str:
        fd = self._fds.get(name)
        if fd is None:
            return ""
        try:
            return os.pread(fd, 4096, 0).decode("ascii", "replace")
        except OSError:
            return ""


def _field(text: str, name: str) -> Optional[int]:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def _disk_bytes() -> Optional[int]:
    """Bytes used in the workspace. None if it shares a disk with others and is too big to walk."""
    if os.stat(WORKSPACE).st_dev != os.stat("/usr").st_dev:
        disk = os.statvfs(WORKSPACE)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    total = seen = 0
    for folder, folders, names in os.walk(WORKSPACE):
        folders[:] = [each for each in folders if os.path.join(folder, each) not in VOLUMES]
        for name in names:
            seen += 1
            if seen > _WALK_LIMIT:
                return None
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total
