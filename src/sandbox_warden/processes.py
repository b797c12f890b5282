"""The process table of the box: who belongs to a command, and ending all of it."""

import os
import signal
from typing import Callable, Dict, List

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


def children(parent: int) -> List[int]:
    return [pid for pid, other in _parents().items() if other == parent]


def strays(since: int, marker: bytes) -> List[int]:
    """Orphans of a command where there are no subreapers: they carry its marker, or none of any
    command and are younger than its shell."""
    name = marker.partition(b"=")[0] + b"="
    found = []
    for pid, parent in _parents().items():
        if parent == 1:
            try:
                environment = _read("/proc/%d/environ" % pid)
                young = started(pid) >= since
            except (OSError, ValueError):
                continue
            if marker in environment or (young and name not in environment):
                found.append(pid)
    return found


def kill_all(members_now: Callable[[], List[int]]) -> None:
    """End every process that members_now finds, until it finds no more.

    A fork bomb loses because what is stopped cannot fork and the number of processes is limited.
    """
    for _ in range(_ROUNDS):
        members = members_now()
        if not members:
            break
        for pid in members:
            kill(pid, signal.SIGSTOP)
        for pid in members:
            kill(pid, signal.SIGKILL)


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def group_of(pid: int) -> int:
    """The process group of a process, 0 for one that is gone."""
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return 0


def count() -> int:
    return sum(1 for name in os.listdir("/proc") if name.isdigit())


def parent_of(pid: int) -> int:
    """The parent of a process as this box sees it: 0 for one that was put in from outside."""
    return int(_stat(pid)[1])


def started(pid: int) -> int:
    """When a process began, in ticks since some moment that is the same for all."""
    return int(_stat(pid)[19])


def exists(pid: int) -> bool:
    return os.path.exists("/proc/%d" % pid)


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
    # The name is in parentheses and may hold anything, parentheses included.
    return _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
