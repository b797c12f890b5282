"""What a box has used, as its control groups count it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CPU = ("cpuacct.usage", "cpu.stat")
_MEMORY = ("memory.usage_in_bytes", "memory.current")
_RECLAIM = {"memory.reclaim": str(1 << 40), "memory.force_empty": "0"}
"""What is written to have all memory taken back that can be: in the second version, the first."""
_PEAK = ("memory.max_usage_in_bytes", "memory.peak")


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
    found = [Path(folder) for folder in folders]
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
    """The groups of a container's process. Their paths have the container's id in them with every
    driver of the engine; without it, the pid is that of another machine. Raises OSError."""
    paths: dict[str, str] = {}
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    found = []
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, folder = before.split()[3:5]
        kind, options = after.split()[0], after.split()[-1]
        wanted = {"cgroup": ("cpuacct", "memory"), "cgroup2": ("",)}.get(kind, ())
        for name in wanted:
            path = paths.get(name, "")
            of_it = kind == "cgroup2" or name in options.split(",")
            if of_it and container_id in path and path.startswith(root.rstrip("/")):
                found.append(str(Path(folder, path[len(root.rstrip("/")) :].lstrip("/"))))
    return found


def _first(folders: list[Path], names: tuple[str, ...]) -> str | None:
    for name in names:  # In this order: the first version has a cpu.stat too, with other fields.
        for folder in folders:
            try:
                return (folder / name).read_text().strip()
            except OSError:
                continue
    return None


def _cpu_us(text: str) -> int:
    """Version 1 has nanoseconds, version 2 a table."""
    if text.isdigit():
        return int(text) // 1000
    fields = dict(line.split() for line in text.splitlines())
    return int(fields.get("usage_usec", 0))
