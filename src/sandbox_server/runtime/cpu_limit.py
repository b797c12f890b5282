"""The CPU limit of a box, and its burst: a box that was idle may use more than its share for a
moment, so that a short command need not wait for the next period. Over time it gets no more than
its limit.

Embedded boxes get the burst with their control group. Docker has no option for it, so a server
that is root on the engine's machine writes it into the container's group once the container runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 300_000
"""In which the limit is kept. With the usual 100 ms a command of 100 ms waits, and of many short
ones in a row one in seventy; with more, a busy box would stand still for longer at a time."""
FILES = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}
"""By version of control groups. Linux has them since 5.14."""


def quota_us(cpus: float) -> int:
    """Of each period. The kernel takes no less than a millisecond."""
    return max(int(cpus * PERIOD_US), 1000)


def allow(pid: int, container_id: str, *, proc: Path = Path("/proc")) -> str:
    """Give a container's group the largest burst the kernel takes: as much as its quota.

    Returns why it could not be done; empty if it was.
    """
    try:
        group = _group_of(pid, container_id, proc)
        quota = group.quota()
        if quota:
            (group.folder / FILES[group.version]).write_text(quota)
    except (OSError, LookupError) as exc:
        return str(exc)
    return ""


@dataclass(frozen=True)
class _Group:
    version: int
    folder: Path

    def quota(self) -> str:
        """Microseconds of each period; empty without a limit."""
        name = "cpu.cfs_quota_us" if self.version == 1 else "cpu.max"
        quota = (self.folder / name).read_text().split()[0]
        return "" if quota in ("-1", "max") else quota


def _group_of(pid: int, container_id: str, proc: Path) -> _Group:
    """The group with the CPU limit of a process of the container. Its path has the container's id
    in it with every driver of the engine; without it, the pid is that of another machine.

    Raises LookupError and OSError.
    """
    paths = _paths((proc / str(pid) / "cgroup").read_text())
    for version, root, folder in _mounts((proc / "self" / "mountinfo").read_text()):
        path = paths.get(version, "")
        if container_id in path and path.startswith(root):
            return _Group(version, Path(folder, path[len(root) :].lstrip("/")))
    raise LookupError(f"no control group of container {container_id[:12]} on this machine")


def _paths(text: str) -> dict[int, str]:
    """/proc/<pid>/cgroup: the path in the hierarchy of the cpu controller, by version."""
    paths = {}
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            paths[1] = path
        elif number == "0":
            paths[2] = path
    return paths


def _mounts(text: str) -> list[tuple[int, str, str]]:
    """(version, root, folder) of the hierarchies, version 1 first: where a machine has both, the
    controller is in the older one."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        root, folder = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and "cpu" in options.split(","):
            found.append((1, root.rstrip("/"), folder))
        elif kind == "cgroup2":
            found.append((2, root.rstrip("/"), folder))
    return sorted(found)
