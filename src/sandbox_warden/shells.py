"""Spare shells: bash is started in advance, so that a command need not wait for it."""

import contextlib
import errno
import os
import resource
import signal
import socket
from collections import deque
from typing import Callable, Deque, List, Optional, Set, Tuple

from . import processes
from .killing import Trace, orphans
from .loop import Loop
from .nursery import Nursery
from .nursery_process import fork
from .processes import Killer, Process, Table
from .shell import MOST_COMMANDS, PLAIN, TYPED, Shell, prelude_file
from .stdin import Size

_SPARES = 1
"""For a command that cannot go on in the shell of the last one."""
_MAX_IDLE = 2
_ATTEMPTS = 10
"""How often a start is retried when the nursery gets killed."""
_REMEMBERED = 256
"""How many sessions of ended shells are remembered, for their background children."""


class Shells:
    """Gives out shells and reports their end.

    first: a nursery that was forked already, for the first shell.
    on_exit(nursery, status): a shell given out has ended; its user releases the nursery.
    on_gone(nursery): everything killed is gone.
    """

    def __init__(
        self,
        loop: Loop,
        open_files: int,
        first: Optional[Tuple[int, socket.socket]],
        *,
        on_exit: Callable[[Nursery, int], None],
        on_gone: Callable[[Nursery], None],
    ) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._on_gone = on_gone
        self._open_files = open_files
        self._first = first
        self._preludes = {PLAIN: prelude_file(open_files)}
        """By kind of shell, once there was one."""
        self._limits = processes.limits(os.getpid())
        if open_files:
            self._limits[resource.RLIMIT_NOFILE] = (open_files, open_files)
        self._nurseries: List[Nursery] = []
        self._pids: Set[int] = set()
        """Pids of all nurseries, including closed ones that have not exited yet."""
        self._spares: List[Nursery] = []
        self._ended: Deque[int] = deque(maxlen=_REMEMBERED)

    def take(
        self, *, stdin: bool, terminal: Optional[Size] = None, interactive: bool = False
    ) -> Nursery:
        """A nursery whose shell waits for its call. Raises OSError."""
        for nursery in self._spares[:]:
            nursery.listen()
            if not nursery.alive and nursery in self._spares:
                self._drop_spare(nursery)
        if stdin or terminal or not self._spares:
            kind = TYPED if interactive else PLAIN
            if kind not in self._preludes:
                self._preludes[kind] = prelude_file(self._open_files, interactive=interactive)
            prelude = self._preludes[kind]
            return self._start(Shell(prelude, stdin=stdin, terminal=terminal, kind=kind))
        return self._spares.pop(0)

    def can_go_on(self, nursery: Nursery) -> bool:
        """Whether a shell that has told the end of its command can run another: nothing is left of
        the command but the state, so it is as good as a new one."""
        shell = nursery.shell
        return (
            shell is not None
            and shell.commands < MOST_COMMANDS
            and nursery.shell_is_alone
            and shell.is_as_new(self._limits)
        )

    def release(self, nursery: Nursery) -> None:
        """The nursery's command has ended."""
        shell = nursery.shell
        if shell is not None:
            self._ended.append(shell.session)
        nursery.release()
        idle = sum(1 for n in self._nurseries if n.alive and n.shell is None)
        if idle > _MAX_IDLE:
            nursery.close()
        if not nursery.alive and nursery in self._nurseries:
            self._nurseries.remove(nursery)

    @property
    def needs_spare(self) -> bool:
        return len(self._spares) < _SPARES

    def have_spare(self) -> bool:
        """Whether a spare shell has started: a box may have no process left for it."""
        for nursery in self._spares[:]:
            nursery.listen()
        return any(
            nursery.alive and nursery.shell is not None and nursery.shell.pid
            for nursery in self._spares
        )

    def prepare(self) -> None:
        """Start spare shells for the next commands."""
        try:
            while self.needs_spare:
                self._spares.append(self._start(Shell(self._preludes[PLAIN], stdin=False)))
        except OSError:
            pass  # The box is at its limit; the next command gets the error.

    def end_spares(self) -> None:
        """End spare shells, and their nurseries."""
        for nursery in self._spares[:]:
            self._drop_spare(nursery)
        self.end_idle()

    def end_idle(self) -> None:
        """End the nurseries that have no shell."""
        for nursery in self._nurseries[:]:
            if nursery.shell is None:
                nursery.close()
                self._nurseries.remove(nursery)

    def reaped(self, pid: int, status: int) -> None:
        """A child of the warden has ended: a nursery, or the shell of one that was killed."""
        self._pids.discard(pid)
        for nursery in self._nurseries[:]:
            nursery.listen()
        for nursery in self._nurseries[:]:
            if nursery.pid == pid:
                self._lost(nursery)
            elif nursery.shell is not None and nursery.shell.pid == pid:
                nursery.shell_over(status, busy=False)

    def _lost(self, nursery: Nursery) -> None:
        nursery.close()
        if nursery in self._spares:
            self._drop_spare(nursery)
        elif nursery.shell is not None:
            nursery.died()
        else:
            self._nurseries.remove(nursery)

    def own_pids(self, waiting: Optional[Shell]) -> List[int]:
        """Nurseries, spare shells and one that waits."""
        shells = [waiting, *(nursery.shell for nursery in self._spares)]
        found = [*self._pids, *(shell.pid for shell in shells if shell is not None)]
        for nursery in self._spares:  # A new one may not have told the pid of its shell yet.
            with contextlib.suppress(OSError):
                found += processes.children(nursery.pid)
        return found

    def stopped(self, pid: int) -> None:
        """A child of the warden was stopped (SIGSTOP): resume it if it is a nursery."""
        if pid in self._pids:
            processes.kill(pid, signal.SIGCONT)

    def kill(self, nursery: Nursery, trace: Callable[[int, int], Trace]) -> None:
        """Kill everything a nursery's command started. trace: makes a Trace for a shell and its
        session."""
        nursery.kill(lambda table: self._traced(table, nursery, trace))

    def _traced(
        self, table: Table, nursery: Nursery, trace: Callable[[int, int], Trace]
    ) -> List[Process]:
        """The processes of a command whose nursery is not a live subreaper."""
        shell = nursery.shell
        pid, session = (0, 0) if shell is None else (shell.pid, shell.session)
        others = {n.shell.session for n in self._nurseries if n.shell is not None}
        others.update(self._ended)
        others.discard(session)
        about = trace(pid, session)
        lost = [p for p in orphans(table, self._pids) if about.owns(p, others)]
        return [*lost, *processes.below(table, [nursery.pid, *(p.pid for p in lost)])]

    def kill_background(self) -> None:
        """Kill the background processes of ended commands."""

        def find(table: Table) -> List[Process]:
            lost = orphans(table, {nursery.pid for nursery in self._nurseries})
            return [*lost, *processes.below(table, [p.pid for p in lost])]

        Killer(find).sweep()

    def _start(self, shell: Shell) -> Nursery:
        try:
            for _ in range(_ATTEMPTS):
                nursery = self._idle() or self._new_nursery()
                try:
                    nursery.start(shell)
                    return nursery
                except ConnectionError:  # The nursery was killed.
                    nursery.close()
                    self._nurseries.remove(nursery)
            raise OSError(errno.EAGAIN, "a process in the box kills every new process")
        except OSError:
            shell.handed_over()
            shell.close()
            raise

    def _idle(self) -> Optional[Nursery]:
        return next((n for n in self._nurseries if n.alive and n.shell is None), None)

    def _new_nursery(self) -> Nursery:
        process, self._first = self._first or fork(), None
        nursery = Nursery(self._loop, process, self._exited, self._on_gone)
        self._nurseries.append(nursery)
        self._pids.add(nursery.pid)
        return nursery

    def _exited(self, nursery: Nursery, status: int) -> None:
        if nursery in self._spares:
            self._drop_spare(nursery)
        else:
            self._on_exit(nursery, status)

    def _drop_spare(self, nursery: Nursery) -> None:
        """A spare shell without its nursery is not used: its children would be hard to find."""
        self._spares.remove(nursery)
        if nursery.shell is not None:
            nursery.shell.close()  # Makes it exit.
        self.release(nursery)
