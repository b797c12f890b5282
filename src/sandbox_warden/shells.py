"""Shells at hand: one bash is always started ahead, so that a command need not wait for it."""

import signal
from typing import Callable, List, Optional

from . import processes
from .loop import Loop
from .nursery import Nursery
from .shell import Shell, prelude_file

_MAX_IDLE = 2

OnExit = Callable[[Shell, int], None]


class Shells:
    """Gives out shells and says when they have ended. A shell is used once."""

    def __init__(self, loop: Loop, on_exit: OnExit) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._prelude = prelude_file()
        self._nurseries: List[Nursery] = []
        self._spare: Optional[Nursery] = None

    def take(self, *, stdin: bool) -> Nursery:
        """A nursery whose shell waits for its call. Raises OSError."""
        if self._spare is None or stdin:
            return self._start(Shell(stdin=stdin))
        spare, self._spare = self._spare, None
        return spare

    def prepare(self) -> None:
        """Have a shell at hand for the next command."""
        if self._spare is None:
            try:
                self._spare = self._start(Shell(stdin=False))
            except OSError:
                pass  # The box is at its limit; the command will be told.

    def reaped(self, pid: int, status: int) -> None:
        """A child of the warden has ended: a nursery, or the shell of one that was killed."""
        for nursery in self._nurseries[:]:
            nursery.listen()
        for nursery in self._nurseries[:]:
            shell = nursery.shell
            if shell is not None and shell.pid == pid:
                self._exited(nursery, status)
            elif nursery.pid == pid:
                nursery.close()
                if shell is None or not shell.pid or not processes.exists(shell.pid):
                    self._exited(nursery, signal.SIGKILL)

    def stopped(self, pid: int) -> None:
        """A child of the warden was stopped: a nursery has to go on, it is nobody's to stop."""
        if any(nursery.pid == pid for nursery in self._nurseries):
            processes.kill(pid, signal.SIGCONT)

    def background(self) -> List[int]:
        """Processes of commands that have ended: orphans of the warden and all below them."""
        ours = {nursery.pid for nursery in self._nurseries}
        orphans = [pid for pid in processes.children(1) if pid not in ours]
        return [*orphans, *(below for pid in orphans for below in processes.descendants(pid))]

    def _start(self, shell: Shell) -> Nursery:
        nursery = next((n for n in self._nurseries if n.alive and n.shell is None), None)
        try:
            if nursery is None:
                nursery = Nursery(self._loop, self._prelude, self._exited)
                self._nurseries.append(nursery)
            nursery.start(shell)
        except OSError:
            shell.handed_over()
            shell.close()
            raise
        return nursery

    def _exited(self, nursery: Nursery, status: int) -> None:
        shell, nursery.shell = nursery.shell, None
        if self._spare is nursery:
            self._spare = None
        idle = sum(1 for n in self._nurseries if n.alive and n.shell is None)
        if idle > _MAX_IDLE:
            nursery.close()
        if not nursery.alive and nursery in self._nurseries:
            self._nurseries.remove(nursery)
        if shell is not None:
            self._on_exit(shell, status)
