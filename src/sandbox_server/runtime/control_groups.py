"""What a box has used, as its control groups count it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_CPU = ("cpuacct.usage", "cpu.stat")
_MEMORY = ("memory.usage_in_bytes", "memory.current")
_RECLAIM = {"memory.reclaim": str(1 << 40), "memory.force_empty": "0"}
"""What is written to have all memory taken back that can be: in the second version, the first."""
_PEAK = ("memory.max_usage_in_bytes", "memory.peak")
_MOST_BYTES = 16384


@dataclass(frozen=True, kw_only=True)
class Measured:
    cpu_us: int
    """Since the box was made."""
    memory: int = 0
    """Now."""
    memory_peak: int = 0
    """The most so far; where the kernel does not keep that, what is used now."""


def measure(folders: Iterable[str]) -> Measured | None:
    """folders: all groups of a box. None if there is no count of its CPU time, or no more."""
    found = list(folders)
    cpu = _first(found, _CPU)
    if cpu is None:
        return None
    memory = int(_first(found, _MEMORY) or 0)
    return Measured(
        cpu_us=_cpu_us(cpu), memory=memory, memory_peak=max(memory, int(_first(found, _PEAK) or 0))
    )


def reclaim(folders: Iterable[str]) -> None:
    """Take back the memory of a box that is not in use; folders: all its groups. Where the kernel
    cannot, or would not do all of it, the box just keeps it."""
    for folder in map(Path, folders):
        for name, text in _RECLAIM.items():
            with contextlib.suppress(OSError):
                (folder / name).write_text(text)


def folders_of(pid: int, container_id: str, *, proc: Path = Path("/proc")) -> list[str]:
    """The groups of a container's process that count what it uses. Raises OSError."""
    found = groups_of(pid, container_id, ("cpuacct", "memory"), proc=proc)
    return [str(folder) for _, folder in found]


def groups_of(
    pid: int, container_id: str, controllers: Sequence[str], *, proc: Path
) -> list[tuple[int, Path]]:
    """(version, folder) of the groups with these controllers of a container's process, version 1
    first: where a machine has both, the controller is in the older one. Their paths have the
    container's id in them with every driver of the engine; without it, the pid is that of another
    machine. Raises OSError."""
    paths: dict[str, str] = {}
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    found = []
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, folder = before.split()[3:5]
        root, kind, options = root.rstrip("/"), after.split()[0], after.split()[-1].split(",")
        wanted = {"cgroup": [name for name in controllers if name in options], "cgroup2": [""]}
        for path in (paths.get(name, "") for name in wanted.get(kind, ())):
            if container_id in path and path.startswith(root):
                version = 1 if kind == "cgroup" else 2
                found.append((version, Path(folder, path[len(root) :].lstrip("/"))))
    return sorted(found, key=lambda group: group[0])


def _first(folders: list[str], names: tuple[str, ...]) -> str | None:
    for name in names:  # In this order: the first version has a cpu.stat too, with other fields.
        for folder in folders:
            with contextlib.suppress(OSError):
                return _read(f"{folder}/{name}")
    return None


def _read(path: str) -> str:
    """A file of the kernel's, which is short: without what a Path and a text file cost, as this is
    done for all boxes again and again. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST_BYTES).decode().strip()
    finally:
        os.close(fd)


def _cpu_us(text: str) -> int:
    """Version 1 has nanoseconds, version 2 a table."""
    if text.isdigit():
        return int(text) // 1000
    fields = dict(line.split() for line in text.splitlines())
    return int(fields.get("usage_usec", 0))
