"""Keeping the box as it is for a moment: nothing begins, and what runs stands still, so that its
files do not change.

SIGSTOP, parents first, and SIGCONT, children first: a shell does not notice that its jobs stood
still.
"""

import os
import signal
import time
from typing import Callable, Collection, Dict, List

from . import processes
from .errors import Refused
from .processes import Process, Table

_WITHIN_S = 2.0
"""On a busy machine a process may take a while until it gets the CPU, to stop."""
_SHORTEST_S, _LONGEST_S = 0.001, 0.02
_MOST_TOLD = 100


class Hold:
    """No command begins, no file is received, and what runs is paused, but for the pids in `keep`,
    which is asked after every look at what runs. on_end lets commands begin again."""

    def __init__(self, keep: Callable[[], Collection[int]], on_end: Callable[[], None]) -> None:
        """Raises Refused if something forks too fast, or is stuck in the kernel."""
        self._keep = keep
        self._on_end = on_end
        self._stopped: List[Process] = []
        self._ended = False
        self.took_s = 0.0
        """How long all of it stood still, at the end."""
        table, _ = processes.scan()
        found = self._others(table)
        self.running = _named(found)[:_MOST_TOLD]
        """Processes that a copy of the files does not have."""
        self.pauses = bool(found)
        self._since = time.monotonic()
        if found and not self._stop():
            self.end()
            message = "the processes of the box do not stand still; try again, or end them"
            raise Refused("conflict", message)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        for process in reversed(self._stopped):
            processes.kill(process.pid, signal.SIGCONT)
        if self.pauses:
            self.took_s = time.monotonic() - self._since
        self._on_end()

    def _stop(self) -> bool:
        """Whether everything stands still now."""
        known: Dict[int, Process] = {}
        deadline, wait_s = time.monotonic() + _WITHIN_S, 0.0
        while time.monotonic() < deadline:
            time.sleep(wait_s)
            wait_s = min(max(2 * wait_s, _SHORTEST_S), _LONGEST_S)
            table, whole = processes.scan()
            running = [each for each in self._others(table) if not processes.is_stopped(each.pid)]
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

    def _others(self, table: Table) -> List[Process]:
        """The processes of the box but those that are kept and the warden, parents first."""
        keep = self._keep()
        return [each for each in processes.below(table, [os.getpid()]) if each.pid not in keep]


def _named(found: List[Process]) -> List[str]:
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
