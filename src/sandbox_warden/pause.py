"""Stopping everything that runs in the box for a moment, so that its files do not change.

SIGSTOP, parents first, and SIGCONT, children first: a shell does not notice that its jobs stood
still.
"""

import os
import signal
import time
from typing import Callable, Collection, Dict, List

from . import processes
from .processes import Process, Table

_WITHIN_S = 2.0
"""On a busy machine a process may take a while until it gets the CPU, to stop."""
_SHORTEST_S, _LONGEST_S = 0.001, 0.02

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
        deadline, wait_s = time.monotonic() + _WITHIN_S, 0.0
        while time.monotonic() < deadline:
            time.sleep(wait_s)
            wait_s = min(max(2 * wait_s, _SHORTEST_S), _LONGEST_S)
            table, whole = processes.scan()
            running = self._running(table)
            moving = {process.pid for process in running}
            for process in running:
                # A parent that still moves could see its child stop.
                if process.pid not in known and process.parent not in moving:
                    processes.kill(process.pid, signal.SIGSTOP)
                    known[process.pid] = process
            self._stopped = list(known.values())
            if whole and not running:
                return True
        return False

    def end(self) -> None:
        stopped, self._stopped = self._stopped, []
        for process in reversed(stopped):
            processes.kill(process.pid, signal.SIGCONT)
        self.took_s = time.monotonic() - self._since

    def _running(self, table: Table) -> List[Process]:
        """Those that are not stopped, parents first."""
        keep = self._keep()
        return [
            process
            for process in _parents_first(table)
            if process.pid not in keep and process.alive and not processes.is_stopped(process.pid)
        ]


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
