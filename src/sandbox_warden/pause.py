"""Stopping everything that runs in the box for a moment, so that its files do not change.

SIGSTOP, parents first, and SIGCONT, children first: a shell does not notice that its jobs stood
still.
"""

import os
import signal
import time
from typing import Callable, Collection, Dict, List, Tuple

from . import processes
from .processes import Process, Table

_ROUNDS = 50
_PAUSE_S = 0.001

Keep = Callable[[], Collection[int]]


class Pause:
    """What is paused. keep: tells the pids that go on; asked after every look at what runs."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._stopped: List[Process] = []
        self._since = time.monotonic()
        self.took_s = 0.0
        """How long all of it stood still, at the end."""

    def begin(self) -> bool:
        """Whether everything stands still now. If not, something forks too fast, or is stuck in the
        kernel."""
        known: Dict[int, Process] = {}
        for number in range(_ROUNDS):
            table, whole = processes.scan()
            running, waiting = self._others(table)
            fresh = [process for process in running if process.pid not in known]
            for process in fresh:
                processes.kill(process.pid, signal.SIGSTOP)
                known[process.pid] = process
            self._stopped = list(known.values())
            if whole and not fresh and not waiting:
                return True
            if number:
                time.sleep(_PAUSE_S)
        return False

    def end(self) -> None:
        stopped, self._stopped = self._stopped, []
        for process in reversed(stopped):
            processes.kill(process.pid, signal.SIGCONT)
        self.took_s = time.monotonic() - self._since

    def _others(self, table: Table) -> Tuple[List[Process], bool]:
        """Those that run and were not stopped before, parents first, and whether some have not
        stopped yet."""
        mine = {process.pid for process in self._stopped}
        keep = self._keep()
        running, waiting = [], False
        for process in _parents_first(table):
            if process.pid in keep or not process.alive:
                continue
            if processes.is_stopped(process.pid):
                continue
            if process.pid in mine:
                waiting = True
            else:
                running.append(process)
        return running, waiting


def _parents_first(table: Table) -> List[Process]:
    return processes.below(table, [os.getpid()])


def others(keep: Keep) -> List[Process]:
    """The processes of the box but these and the warden."""
    table, _ = processes.scan()
    kept = keep()
    return [process for process in _parents_first(table) if process.pid not in kept]


def named(found: List[Process]) -> List[str]:
    """How they were started, shortened."""
    names = []
    for process in found:
        try:
            with open("/proc/%d/cmdline" % process.pid, "rb") as file:
                text = file.read(300).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if text:
            names.append(text[:200])
    return names
