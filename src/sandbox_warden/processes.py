"""The process table of the box: who belongs to a command, and ending all of it."""

import os
import signal
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Set, Tuple

_TICKS_S = os.sysconf("SC_CLK_TCK")
_ROUNDS = 10
_FROZEN_ROUNDS = 20


class Process(NamedTuple):
    pid: int
    alive: bool
    parent: int
    session: int
    started: int
    """In ticks since some moment that is the same for all."""


Table = Dict[int, Process]
Find = Callable[[Table], List[Process]]


class Sweep(NamedTuple):
    """One pass of killing: what it found alive, and whether it can have missed something."""

    found: List[Process]
    sure: bool


def scan() -> Tuple[Table, bool]:
    """All processes, dead ones that nobody has waited for included; and whether none has ended
    while they were looked at. One that did may have left a child that was not listed yet."""
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
    """Ends the processes that `find` picks, in as many sweeps as it takes."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._killed: Set[Process] = set()
        self._dead: Set[int] = set()

    def sweep(self, *, frozen: bool = False) -> Sweep:
        """Kill all there are, again and again while new ones appear.

        One by one they can be outrun: by a fork bomb, or a process that forks and exits without
        end. Those are caught with the whole box stopped, for the milliseconds that takes. The
        kernel stops all processes at once, and one that is just being forked along with its parent.
        """
        if not frozen:
            for _ in range(_ROUNDS):
                fresh, sweep = self._round()
                if not fresh:
                    return sweep
        _signal_everybody(signal.SIGSTOP)
        try:
            for _ in range(_FROZEN_ROUNDS):
                fresh, sweep = self._round()
                if not fresh and sweep.sure:
                    break
        finally:
            _signal_everybody(signal.SIGCONT)
        return sweep

    def _round(self) -> Tuple[bool, Sweep]:
        """Whether there were new ones, and what was found."""
        table, whole = scan()
        found = self._find(table)
        for process in found:
            kill(process.pid, signal.SIGKILL)
        known, self._killed = self._killed, {process._replace(parent=0) for process in found}
        dead = {process.pid for process in table.values() if not process.alive}
        sure = whole and dead <= self._dead
        self._dead = dead
        return not self._killed <= known, Sweep(found, sure)


def _signal_everybody(number: int) -> None:
    """To every process of the box but the warden. SIGCONT also wakes what a user had stopped."""
    if os.getpid() == 1:  # Anywhere else this would be for the whole machine.
        kill(-1, number)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, or to the group -pid. One that is gone is no error."""
    try:
        os.kill(pid, number)
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


def look_at(pid: int) -> Process:
    """One process. Raises OSError and ValueError where it is gone. The parent is 0 for one that was
    put in from outside."""
    fields = _stat(pid)
    alive = fields[0] not in (b"Z", b"X")
    return Process(pid, alive, int(fields[1]), int(fields[3]), int(fields[19]))


def parent_of(pid: int) -> int:
    """-1 for a process that is gone, 0 for one that was put in from outside."""
    try:
        return look_at(pid).parent
    except (OSError, ValueError):
        return -1


def ticks(ago_s: float = 0.0) -> int:
    """The time so long ago as Process.started counts it."""
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s) * _TICKS_S)


def environment(pid: int) -> bytes:
    """What a process was started with, as far as it lets others see: it may also say nothing."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read()
    except OSError:
        return b""


def cpu_seconds() -> float:
    """What all processes of the box have used, the ended ones that were waited for included."""
    used = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                used += sum(int(value) for value in _stat(int(name))[11:15])
            except (OSError, ValueError):
                continue
    return used / _TICKS_S


def _stat(pid: int) -> List[bytes]:
    """The fields of /proc/PID/stat behind the name: state, parent, …"""
    with open("/proc/%d/stat" % pid, "rb") as file:
        # The name is in parentheses and may hold anything, parentheses included.
        fields = file.read().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("no fields of process %d" % pid)
    return fields
