"""The process table of the box: finding and killing processes."""

import ctypes
import os
import resource
import signal
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Set, Tuple

_TICKS_S = os.sysconf("SC_CLK_TCK")
_LIMITS = 16
"""How many resource limits Linux knows."""
_ROUNDS = 10
_FROZEN_ROUNDS = 20
_PROC_SUPER_MAGIC = 0x9FA0


class Process(NamedTuple):
    pid: int
    alive: bool
    parent: int
    session: int
    started: int
    """In clock ticks since boot."""


Table = Dict[int, Process]
Find = Callable[[Table], List[Process]]


class Sweep(NamedTuple):
    """One kill pass: what it found alive, and whether it may have missed something."""

    found: List[Process]
    sure: bool


def scan() -> Tuple[Table, bool]:
    """All processes, zombies included, and whether none ended during the scan: its child may not be
    listed then."""
    table: Table = {}
    whole = True
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                table[int(name)] = look_at(int(name))
            except (OSError, ValueError):
                whole = False
    return table, whole


def below(table: Table, roots: Iterable[int]) -> List[Process]:
    """Every living process below the roots."""
    children: Dict[int, List[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: List[Process] = []
    todo = list(roots)
    while todo:
        nearest = children.get(todo.pop(), [])
        found += nearest
        todo += [process.pid for process in nearest]
    return [process for process in found if process.alive]


class Killer:
    """Kills the processes that `find` picks, in as many sweeps as it takes."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._killed: Set[Process] = set()
        self._dead: Set[int] = set()

    def sweep(self, *, frozen: bool = False) -> Sweep:
        """Kill all of them, repeatedly while new ones appear.

        A fork bomb, or a process that keeps forking and exiting, can outrun that. `frozen` stops
        the whole box for the few milliseconds of the sweep: kill(-1) stops all processes at once,
        including those just being forked.
        """
        if not frozen:
            for _ in range(_ROUNDS):
                fresh, sweep = self._round()
                if not fresh:
                    return sweep
        _signal_all(signal.SIGSTOP)
        try:
            for _ in range(_FROZEN_ROUNDS):
                fresh, sweep = self._round()
                if not fresh and sweep.sure:
                    break
        finally:
            _signal_all(signal.SIGCONT)
        return sweep

    def _round(self) -> Tuple[bool, Sweep]:
        """Whether there were new processes, and what was found."""
        table, whole = scan()
        found = self._find(table)
        for process in found:
            kill(process.pid, signal.SIGKILL)
        known, self._killed = self._killed, {process._replace(parent=0) for process in found}
        dead = {process.pid for process in table.values() if not process.alive}
        sure = whole and dead <= self._dead
        self._dead = dead
        return not self._killed <= known, Sweep(found, sure)


def _signal_all(number: int) -> None:
    """Signal every process of the box but the warden. SIGCONT also resumes what a user stopped."""
    if os.getpid() == 1:  # Otherwise this would signal the whole machine.
        kill(-1, number)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, or to the group -pid. Ignores one that is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def group_of(pid: int) -> int:
    """The process group of a process; 0 if it is gone."""
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return 0


def children(pid: int) -> List[int]:
    """The children of a process with one thread, zombies included. Raises OSError where the kernel
    does not tell."""
    return [int(child) for child in _read("/proc/%d/task/%d/children" % (pid, pid)).split()]


def descriptors(pid: int) -> Dict[int, str]:
    """What each descriptor of a process is open to; one that closes meanwhile is closed. Raises
    OSError if the process is gone."""
    folder, found = "/proc/%d/fd/" % pid, {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(folder + name)
        except FileNotFoundError:
            pass
    return found


def limits(pid: int) -> List[Tuple[int, int]]:
    """The resource limits of a process. Raises OSError if it is gone."""
    return [resource.prlimit(pid, number) for number in range(_LIMITS)]


def count() -> int:
    return sum(1 for name in os.listdir("/proc") if name.isdigit())


def look_at(pid: int) -> Process:
    """Read one process. Raises OSError or ValueError if it is gone. The parent is 0 for a process
    started from outside (docker exec)."""
    fields = _stat(pid)
    alive = fields[0] not in (b"Z", b"X")
    return Process(pid, alive, int(fields[1]), int(fields[3]), int(fields[19]))


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process stands still, or is gone."""
    folder = "/proc/%d/task/" % pid
    try:
        return all(_stat_of(folder + name)[0] in b"TtZX" for name in os.listdir(folder))
    except (OSError, ValueError):
        return False  # A thread has ended meanwhile, or all of it: the next look tells.


def parent_of(pid: int) -> int:
    """The parent's pid; -1 if the process is gone, 0 if it was started from outside."""
    try:
        return look_at(pid).parent
    except (OSError, ValueError):
        return -1


def ticks(ago_s: float = 0.0) -> int:
    """The time `ago_s` seconds ago, in the unit of Process.started."""
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s) * _TICKS_S)


def environment(pid: int) -> bytes:
    """The environment a process was started with; a process can hide or clear it."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read()
    except OSError:
        return b""


def cpu_seconds() -> float:
    """CPU time of all processes of the box, including reaped ones."""
    used = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                used += sum(int(value) for value in _stat(int(name))[11:15])
            except (OSError, ValueError):
                continue
    return used / _TICKS_S


def _read(path: str) -> bytes:
    """Without a file object, which costs more than the read itself."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _stat(pid: int) -> List[bytes]:
    return _stat_of("/proc/%d" % pid)


def _stat_of(folder: str) -> List[bytes]:
    """The fields of a process's or thread's stat after the name: state, parent, …"""
    # The name is in parentheses and may itself contain parentheses.
    fields = _read(folder + "/stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("%s/stat is empty" % folder)
    return fields


def is_warden(folder: int, name: str) -> bool:
    """Whether a name in an open folder is the warden's entry in a procfs, wherever that is mounted.
    The warden has no threads, so there is one; `self` and `thread-self` are links to it.

    The kernel shows a process its own memory, environment and descriptors, and those of the warden
    are nothing for the user. Every other process is shown to the warden as it is to the user."""
    if not name.isdecimal():
        return False
    try:
        if os.readlink("self", dir_fd=folder) != name:
            return False
    except OSError:
        return False
    return _type(folder) == _PROC_SUPER_MAGIC


def _type(folder: int) -> int:
    """The kind of file system that a folder is on; procfs if it cannot be told."""
    about = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).fstatfs(folder, about) != 0:
        return _PROC_SUPER_MAGIC
    return ctypes.c_long.from_buffer(about).value
