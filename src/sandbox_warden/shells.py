"""Shells at hand: bash is always started ahead, so that a command need not wait for it."""

import errno
import signal
from typing import Callable, List

from . import processes
from .loop import Loop
from .nursery import Nursery
from .shell import Shell, prelude_file

_SPARES = 2
"""One for the next command, and one for the command that comes before that one is replaced."""
_MAX_IDLE = 2
_ATTEMPTS = 10
"""How many nurseries may be killed as a shell is to be started."""

OnExit = Callable[[Shell, int], None]


class Shells:
    """Gives out shells and says when they have ended. A shell is used once."""

    def __init__(self, loop: Loop, on_exit: OnExit, open_files: int) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._prelude = prelude_file(open_files)
        self._nurseries: List[Nursery] = []
        self._spares: List[Nursery] = []

    def take(self, *, stdin: bool) -> Nursery:
        """A nursery whose shell waits for its call. Raises OSError."""
        while self._spares and not stdin:
            nursery = self._spares.pop(0)
            nursery.listen()
            if nursery.alive and nursery.shell is not None:
                return nursery
        return self._start(Shell(stdin=stdin))

    def prepare(self) -> None:
        """Have shells at hand for the next commands."""
        try:
            while len(self._spares) < _SPARES:
                self._spares.append(self._start(Shell(stdin=False)))
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
            for _ in range(_ATTEMPTS):
                if nursery is not None and nursery.start(shell):
                    return nursery
                nursery = Nursery(self._loop, self._prelude, self._exited)
                self._nurseries.append(nursery)
            raise OSError(errno.EAGAIN, "its nursery was killed")
        except OSError:
            shell.handed_over()
            shell.close()
            raise

    def _exited(self, nursery: Nursery, status: int) -> None:
        shell, nursery.shell = nursery.shell, None
        if nursery in self._spares:
            self._spares.remove(nursery)
        idle = sum(1 for n in self._nurseries if n.alive and n.shell is None)
        if idle > _MAX_IDLE:
            nursery.close()
        if not nursery.alive and nursery in self._nurseries:
            self._nurseries.remove(nursery)
        if shell is not None:
            self._on_exit(shell, status)
