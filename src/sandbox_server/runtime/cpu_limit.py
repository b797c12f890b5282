"""The CPU limit of a box, and its burst: a box that was idle may use more than its share for a
moment, so that a short command need not wait for the next period. Over time it gets no more than
its limit.

Embedded boxes get the burst with their control group. Docker has no option for it, so a server
that is root on the engine's machine writes it into the container's group once the container runs.
"""

from __future__ import annotations

from pathlib import Path

from sandbox_server.runtime.control_groups import groups_of

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
        groups = groups_of(pid, container_id, ("cpu",), proc=proc)
        if not groups:
            return f"no control group of container {container_id[:12]} on this machine"
        version, folder = groups[0]
        name = "cpu.cfs_quota_us" if version == 1 else "cpu.max"
        quota = (folder / name).read_text().split()[0]
        if quota not in ("-1", "max"):  # It has a limit.
            (folder / FILES[version]).write_text(quota)
    except OSError as exc:
        return str(exc)
    return ""
