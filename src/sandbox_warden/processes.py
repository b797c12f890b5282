"""The process table of the box: who belongs to a command, and ending all of it."""

import os
import signal
from typing import Dict, List

_ROUNDS = 200


def descendants(root: int) -> List[int]:
    """Every living process below root."""
    children: Dict[int, List[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: List[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_below(root: int, *, itself: bool) -> None:
    """End everything below root, daemons included, and root too where itself is true.

    root inherits every orphan, so nothing leaves its tree while the rest is hunted down. A fork
    bomb loses because what is stopped cannot fork and the number of processes is limited.
    """
    for _ in range(_ROUNDS):
        members = descendants(root)
        if not members:
            break
        for pid in members:
            kill(pid, signal.SIGSTOP)
        for pid in members:
            kill(pid, signal.SIGKILL)
    if itself:
        kill(root, signal.SIGKILL)


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def count() -> int:
    return sum(1 for name in os.listdir("/proc") if name.isdigit())


def parent_of(pid: int) -> int:
    """The parent of a process as this box sees it: 0 for one that was put in from outside."""
    return int(_stat(pid)[1])


def cpu_seconds() -> float:
    """What all processes of the box have used, the ended ones that were waited for included."""
    ticks = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                ticks += sum(int(value) for value in _stat(int(name))[11:15])
            except (OSError, ValueError):
                continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _parents() -> Dict[int, int]:
    """Parent by pid, of all processes that are not zombies."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = _stat(int(name))
            except (OSError, ValueError):
                continue
            if fields[0] not in (b"Z", b"X"):
                parents[int(name)] = int(fields[1])
    return parents


def _stat(pid: int) -> List[bytes]:
    """The fields of /proc/PID/stat behind the name: state, parent, …"""
    with open("/proc/%d/stat" % pid, "rb") as file:
        # The name is in parentheses and may hold anything, parentheses included.
        return file.read().rpartition(b")")[2].split()
