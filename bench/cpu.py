"""CPU time of processes, of programs of the host, and of the whole machine."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
DEVNULL = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


def of_process(pid: int) -> float:
    """Seconds of all its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def of_one_thread(pid: int) -> float:
    """Seconds of a process with one thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def of_threads(pid: int) -> float:
    """Seconds of all its threads, to the nanosecond. Raises OSError if it has ended."""
    return sum(
        int(Path(path, "schedstat").read_text().split()[0]) / 1e9
        for path in Path(f"/proc/{pid}/task").iterdir()
    )


def of_machine() -> float:
    """Seconds in which any core was busy."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq = map(int, words[:7])
    return (user + nice + system + irq + softirq) / _TICKS


def of_program(*argv: str) -> float:
    """Run a program to its end; the seconds it took."""
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=DEVNULL)
    _, _, used = os.wait4(pid, 0)
    return used.ru_utime + used.ru_stime
