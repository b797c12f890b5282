"""Control groups of boxes, versions 1 and 2: where they can be created, and what to write to them.

This module plans them; the launcher creates a box's groups and its keeper removes them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from sandbox_server.runtime import cpu_limit
from sandbox_server.runtime.base import Limits

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_REMOVE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """The groups of one box: folders to create, limits to write, files to read usage from."""

    folders: list[str] = field(default_factory=list)
    writes: list[tuple[str, str, bool]] = field(default_factory=list)
    """(path, value, required): if a required write fails, the box does not start."""
    meters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Groups:
    """The usable controllers, each with the folder to create groups in."""

    version: int
    parents: Mapping[str, Path]
    prefix: str = "sandbox"
    """Of the names of groups: the servers of a machine share the folders."""

    def folders(self, box_id: str) -> list[str]:
        return list(dict.fromkeys(map(str, self._by_controller(box_id).values())))

    def _by_controller(self, box_id: str) -> dict[str, Path]:
        return {name: parent / f"{self.prefix}-{box_id}" for name, parent in self.parents.items()}

    def plan(self, box_id: str, limits: Limits) -> GroupPlan:
        folders = self._by_controller(box_id)
        writes, meters = _TABLES[self.version](limits)
        return GroupPlan(
            folders=self.folders(box_id),
            writes=[
                (str(folders[controller] / name), value, required)
                for controller, name, value, required in writes
                if controller in folders
            ],
            meters={
                meter: str(folders[controller] / name)
                for meter, (controller, name) in meters.items()
                if controller in folders
            },
        )


def prefix_of(state_folder: Path) -> str:
    """Starts the names of the groups of one state folder's boxes."""
    return f"sandbox-{sha256(os.fsencode(state_folder)).hexdigest()[:8]}"


_Write = tuple[str, str, str, bool]
_Meters = dict[str, tuple[str, str]]


def _first_version(limits: Limits) -> tuple[list[_Write], _Meters]:
    memory, quota = str(limits.memory_bytes), str(cpu_limit.quota_us(limits.cpus))
    writes = [
        ("memory", "memory.limit_in_bytes", memory, True),
        ("memory", "memory.memsw.limit_in_bytes", memory, False),
        ("pids", "pids.max", str(limits.pids), True),
        ("cpu", "cpu.cfs_period_us", str(cpu_limit.PERIOD_US), True),
        ("cpu", "cpu.cfs_quota_us", quota, True),
        ("cpu", cpu_limit.FILES[1], quota, False),
    ]
    meters = {
        "oom": ("memory", "memory.oom_control"),
        "memory": ("memory", "memory.usage_in_bytes"),
        "cpu": ("cpuacct", "cpuacct.usage"),
        "pids": ("pids", "pids.current"),
    }
    return writes, meters


def _second_version(limits: Limits) -> tuple[list[_Write], _Meters]:
    quota = cpu_limit.quota_us(limits.cpus)
    writes = [
        ("memory", "memory.max", str(limits.memory_bytes), True),
        ("memory", "memory.swap.max", "0", False),
        ("pids", "pids.max", str(limits.pids), True),
        ("cpu", "cpu.max", f"{quota} {cpu_limit.PERIOD_US}", True),
        ("cpu", cpu_limit.FILES[2], str(quota), False),
    ]
    meters = {
        "oom": ("memory", "memory.events"),
        "memory": ("memory", "memory.current"),
        "cpu": ("cpu", "cpu.stat"),
        "pids": ("pids", "pids.current"),
    }
    return writes, meters


_TABLES = {1: _first_version, 2: _second_version}


def find(root: Path = ROOT) -> Groups:
    """Find the usable controllers by trying them. Blocks for a few milliseconds."""
    if (root / "cgroup.controllers").exists():
        for parent in _candidates(root):
            if usable := _usable(parent):
                return Groups(2, dict.fromkeys(usable, parent))
        return Groups(2, {})
    found = {name: (root / name).resolve() for name in CONTROLLERS}
    return Groups(1, {name: parent for name, parent in found.items() if _can_enter(parent)})


def _candidates(root: Path) -> list[Path]:
    """The root group, for root. In a delegated subtree, next to our own group first: cgroup v2
    forbids limits on children of a group that has processes, such as our own."""
    own = root / _own_group().lstrip("/")
    return list(dict.fromkeys([root, own.parent, own]))


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    return "/"


def _usable(parent: Path) -> list[str]:
    wanted = [name for name in CONTROLLERS if name != "cpuacct"]
    _enable(parent, wanted)
    try:
        enabled = (parent / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
    usable = [name for name in wanted if name in enabled]
    return usable if usable and _can_enter(parent) else []


def _enable(parent: Path, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{name}")


def _can_enter(parent: Path) -> bool:
    """Whether our processes can enter a new group below parent."""
    try:
        with _probe(parent) as group:
            words = ["/bin/sh", "-c", 'echo 0 >"$0"', str(group / "cgroup.procs")]
            return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def has_burst(groups: Groups) -> bool:
    """Whether the kernel has CPU burst. The root group of version 2 does not show it."""
    parent = groups.parents.get("cpu")
    if parent is None:
        return False
    with _probe(parent) as group:
        return (group / cpu_limit.FILES[groups.version]).exists()


@contextlib.contextmanager
def _probe(parent: Path) -> Iterator[Path]:
    """A group that is there for a moment. Raises OSError."""
    probe = parent / f"sandbox-probe-{os.getpid()}-{time.monotonic_ns()}"
    try:
        probe.mkdir()
        yield probe
    finally:
        remove([str(probe)])


def remove(folders: list[str]) -> None:
    """Remove groups whose processes have ended or are ending. Idempotent."""
    deadline = time.monotonic() + _REMOVE_S
    for folder in folders:
        while True:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
            else:
                break
