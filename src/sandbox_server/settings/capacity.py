"""How many sessions a machine takes, where nobody has said."""

from __future__ import annotations

import contextlib
from pathlib import Path

SESSION_BYTES = 12 << 20
"""What an idle session costs, with room for the server and for some that work."""
FEWEST = 50


def sessions_for(memory_bytes: int) -> int:
    return max(FEWEST, memory_bytes // SESSION_BYTES)


def default_max_sessions() -> int:
    return sessions_for(memory_bytes())


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory of this machine, or of the control group of this process if that is less."""
    words = (root / "proc/meminfo").read_text().split()
    return min([int(words[1]) * 1024, *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    limits = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif number == "0":
            top, name = root / "sys/fs/cgroup", "memory.max"
        else:
            continue
        # In a container the path may be the host's, which is not to be seen: then the top counts.
        group = top / path.lstrip("/")
        for folder in {top, group, *(p for p in group.parents if p.is_relative_to(top))}:
            with contextlib.suppress(OSError, ValueError):  # No file, or "max".
                limits.append(int((folder / name).read_text()))
    return limits
