"""What goes from command to command: the state, and the shell that has it and waits."""

import signal
from typing import Optional

from . import processes
from .command import Command, exit_of
from .errors import Refused
from .loop import Loop
from .nursery import Nursery
from .output import STDERR
from .pipes import Pipes
from .shell import NEXT_TAKES_OVER, Shell
from .shells import Shells
from .state import WORKSPACE, ShellState, begun, folder_refused, left_traps, unsaved
from .stdin import Size

LOAD_S = 5.0
"""A shell killed after this long without having begun was blocked by its state."""


class Carrying:
    def __init__(self, loop: Loop, shells: Shells, pipes: Pipes) -> None:
        self._loop = loop
        self._shells = shells
        self._pipes = pipes
        self.state = ShellState.fresh()
        """What the last command left, and the next one begins with."""
        self._waiting: Optional[Nursery] = None
        """Its shell ran the last command, has its state and can go on."""

    def shell_for(
        self, command: Command, *, stdin: bool, terminal: Optional[Size] = None
    ) -> Nursery:
        """A nursery whose shell waits for its call. Raises OSError."""
        waiting = self._waiting
        if waiting is not None and not (stdin or command.special):
            self.renew(NEXT_TAKES_OVER)
            if waiting is self._waiting and waiting.alive:
                self._waiting = None
                return waiting
        return self._shells.take(stdin=stdin, terminal=terminal, interactive=command.interactive)

    def can_go_on(self, command: Command, nursery: Nursery) -> bool:
        """Whether the shell of a command that has ended can run the next one: nothing is left of
        the command but its state."""
        return (
            not command.signalled
            and not left_traps(command.saved)
            and _left(command) is not None
            and self._shells.can_go_on(nursery)
        )

    def wait(self, command: Command, nursery: Nursery) -> None:
        """Keep the shell of a command that has ended, for the next one."""
        assert nursery.shell is not None
        self._pipes.give_back(command, nursery.shell)
        self._waiting = nursery

    def ended(self, nursery: Nursery, shell: Shell) -> None:
        """A shell that waited for another command was killed, or was not needed any more."""
        if nursery is self._waiting:
            self._waiting = None
        for fd in (shell.stdout, shell.stderr):
            self._loop.unwatch(fd)
        shell.close()
        self._shells.release(nursery)

    def take(self, command: Command) -> bool:
        """Keep the state: the last command to end wins; a killed one leaves none."""
        left = _left(command)
        data, command.saved = command.saved, b""
        if folder_refused(data):
            message = "cannot enter the start folder %s: it is gone or not accessible" % command.cwd
            command.refused = Refused("invalid_path", message)
        elif not begun(data) and command.age_s > LOAD_S:
            self.drop(command)
        state = None if command.timed_out else left
        if state is None:
            _report_unsaved(command, data)
            return False
        self.replace(state)
        return True

    def replace(self, state: ShellState) -> None:
        self.state = state
        if self._waiting is not None and self._waiting.shell is not None:
            self._waiting.shell.dismiss()  # It has an older state.
            self._waiting = None

    def renew(self, most: int) -> None:
        """End the shell that waits, if it has run so many commands and a spare one has started. Its
        state is saved."""
        if self._waiting is not None:
            self._waiting.listen()  # It may have been killed, and is not waiting any more then.
        shell = self.waiting_shell
        if shell is not None and shell.commands >= most and self._shells.have_spare():
            self._waiting = None
            processes.kill(shell.pid, signal.SIGKILL)

    @property
    def waiting_shell(self) -> Optional[Shell]:
        return None if self._waiting is None else self._waiting.shell

    def drop(self, command: Command) -> None:
        """Drop a state that keeps commands from running."""
        self.state = ShellState.fresh()
        text = (
            b"sandbox: the state of earlier commands could not be loaded; variables, functions and"
            b" options are reset, and the folder is %s\n" % WORKSPACE.encode()
        )
        command.log.append(STDERR, text)


def _left(command: Command) -> Optional[ShellState]:
    """The state that a command has left."""
    assert command.nursery is not None
    shell = command.nursery.shell
    return None if shell is None else shell.state(command.saved)


def _report_unsaved(command: Command, data: bytes) -> None:
    """Tell the reader that no state was kept, unless the command was killed."""
    killed = command.timed_out or exit_of(command.status or 0)[1] is not None
    why = None if killed or command.refused else unsaved(data)
    if why is not None:
        text = (
            "sandbox: the variables, functions and folder of this command are not kept: %s. The"
            " next command starts with the previous ones.\n"
        )
        command.log.append(STDERR, (text % why).encode())
