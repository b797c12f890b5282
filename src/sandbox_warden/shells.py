"""Shells at hand: one bash is always started ahead, with the state of the moment loaded."""

from typing import Callable, List, Optional

from .loop import Loop
from .nursery import Nursery
from .shell import Shell, ShellState, prelude_file

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

    def take(self, state: ShellState, *, stdin: bool) -> Nursery:
        """A nursery whose shell waits for its call, started from state. Raises OSError."""
        spare = self._spare
        if spare is not None and not stdin and spare.shell and spare.shell.state is state:
            self._spare = None
            return spare
        return self._start(Shell(state, stdin=stdin))

    def prepare(self, state: ShellState) -> None:
        """Have a shell ready for the next command, unless there is one."""
        spare = self._spare
        if spare is not None and spare.shell is not None:
            if spare.shell.state is state:
                return
            spare.shell.close()
        try:
            self._spare = self._start(Shell(state, stdin=False))
        except OSError:
            self._spare = None  # The box is at its limit; the command will be told.

    def reaped(self, pid: int, status: int) -> None:
        """A child of the warden has ended: a nursery, or the shell of one that was killed."""
        for nursery in self._nurseries[:]:
            if nursery.pid == pid:
                nursery.died()
                if nursery.shell is None or not nursery.shell.pid:
                    self._exited(nursery, 9)
            elif not nursery.alive and nursery.shell is not None and nursery.shell.pid == pid:
                self._exited(nursery, status)

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
        if not nursery.alive:
            self._nurseries.remove(nursery)
        if shell is not None:
            self._on_exit(shell, status)
