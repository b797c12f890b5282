"""Nurseries: small processes between the warden and its shells.

A nursery is a subreaper: whatever a command starts, even daemons, stays below the nursery in the
process tree until the command ends, and can be found and killed. It serves one command at a time.
If background children are left, it stays until it is released, so that a kill still finds them, and
then exits: they become the warden's. Otherwise it waits for the next command. It starts shells with
posix_spawn, at a third of the cost of forking the warden.
"""

import array
import signal
import socket
from typing import Callable, List, Optional, Tuple

from . import processes
from .killing import Killing
from .loop import READ, Loop
from .processes import Process, Table
from .shell import Shell


class Nursery:
    """The warden's side of one nursery.

    on_exit(nursery, status): its shell has ended. on_gone(nursery): everything killed is gone.
    Background children stay below it until it is released.
    """

    def __init__(
        self,
        loop: Loop,
        process: Tuple[int, socket.socket],
        on_exit: Callable[["Nursery", int], None],
        on_gone: Callable[["Nursery"], None],
    ) -> None:
        """process: from nursery_process.fork(). Raises OSError."""
        self.shell: Optional[Shell] = None
        self.alive = True
        self._over = False
        self._busy = False
        self._subreaper = True
        self._killing: Optional[Killing] = None
        self._early: List[Callable[[], None]] = []
        self._call: Optional[Callable[[], None]] = None
        self._loop = loop
        self._on_exit = on_exit
        self._on_gone = on_gone
        self.pid, self._sock = process
        try:
            loop.watch(self._sock.fileno(), READ, lambda _events: self.listen())
        except OSError:
            self._sock.close()  # It exits.
            raise

    def start(self, shell: Shell) -> None:
        """Start bash with the shell's descriptors. Raises OSError."""
        fds = array.array("i", shell.child_fds)
        self._sock.sendmsg([shell.kind], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        shell.handed_over()
        self.shell = shell
        self._early = []
        self._call = None

    def go(self) -> Shell:
        """Its shell, resumed: a process of the box may have sent SIGSTOP to all others."""
        assert self.shell is not None
        pids = [self.pid, self.shell.pid]
        if not self.shell.pid:  # It may have been stopped before its exec.
            pids = [self.pid, *(p.pid for p in processes.below(processes.scan()[0], [self.pid]))]
        for pid in pids:
            processes.kill(pid, signal.SIGCONT)
        return self.shell

    def call(self, let_go: Callable[[], None]) -> None:
        """Let the shell run its command once its pid is known: a command may kill its own nursery,
        and can then only be found by its pid."""
        assert self.shell is not None
        if self.shell.pid:
            let_go()
        else:
            self._call = let_go

    @property
    def shell_is_alone(self) -> bool:
        """Whether its shell waits and nothing else is left of its command: no child of the shell,
        and no orphan, which would be a child of the nursery by now."""
        if self.shell is None or self._over or self._killing is not None or not self._knows:
            return False
        try:
            return not processes.children(self.shell.pid) and (
                processes.children(self.pid) == [self.shell.pid]
            )
        except OSError:
            return False

    @property
    def gone(self) -> bool:
        """Whether everything killed is gone."""
        return self._killing is None or self._killing.gone

    def kill(self, find: Callable[[Table], List[Process]]) -> None:
        """Kill everything the command started. The shell's end is reported as usual.

        find: picks its processes, if the nursery cannot report that nothing is left.
        """
        self._once_started(lambda: self._kill(find))

    def signal(self, number: int) -> None:
        """Signal the shell's group at once, since one by one a process being forked may be missed;
        then those that have left the group."""
        self._once_started(lambda: self._signal(number))

    def _once_started(self, act: Callable[[], None]) -> None:
        self.listen()
        if self.alive and self.shell is not None and not self.shell.pid and not self._over:
            self._early.append(act)
        else:
            act()

    def _act_early(self) -> None:
        early, self._early = self._early, []
        for act in early:
            act()

    def _kill(self, find: Callable[[Table], List[Process]]) -> None:
        if self._killing is not None:
            return
        self._killing = Killing(
            self._loop,
            lambda table: processes.below(table, [self.pid]) if self._knows else find(table),
            provable=lambda: self._knows,
            impatient=self.destroy,
            give_up=self._give_up,
            on_gone=lambda: self._on_gone(self),
        )
        self._push()

    @property
    def _knows(self) -> bool:
        """Whether it can report that nothing is left."""
        return self.alive and self._subreaper

    def _push(self) -> None:
        assert self._killing is not None
        if self._over and self._knows and not self._busy:
            self._killing.done()
            return
        if self._over and self._busy:
            self._send(b"w")
        self._killing.push(last=self._over)

    def _send(self, message: bytes) -> None:
        try:
            self._sock.send(message)
        except OSError:
            pass  # It is dead; reaped() handles that.

    def _signal(self, number: int) -> None:
        group = self.shell.pid if self.shell is not None else 0
        table, _ = processes.scan()
        members = {p.pid for p in processes.below(table, [self.pid, group])}
        if group in table:  # Not below the nursery if that was killed.
            members.add(group)
        outside = [pid for pid in members if processes.group_of(pid) != group]
        if group and len(outside) < len(members):
            processes.kill(-group, number)
        for pid in outside:
            processes.kill(pid, number)

    def destroy(self) -> None:
        """Kill a nursery that does not answer; its shell becomes the warden's own child."""
        processes.kill(self.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        """Stop waiting for a process stuck in the kernel; the pending SIGKILL will end it."""
        self.close()
        if self._killing is not None:
            self._killing.done()
        self.shell_over(signal.SIGKILL, busy=False)

    def release(self) -> None:
        """The command has ended. Its background children become the warden's."""
        if self._busy:
            self.close()
        self.shell = self._killing = None
        self._over = False

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def listen(self) -> None:
        """Handle its pending reports."""
        while self.alive:
            try:
                message = self._sock.recv(64).split()
            except BlockingIOError:
                return
            except OSError:
                message = []
            if not message:
                self.close()
            elif message[0] == b"pid" and self.shell is not None:
                self.shell.pid, self.shell.session = int(message[1]), int(message[2])
                self._subreaper = message[3] == b"subreaper"
                processes.kill(self.shell.pid, signal.SIGCONT)  # As in go(), if that ran first.
                let_go, self._call = self._call, None
                if let_go is not None:
                    let_go()
                self._act_early()
            elif message[0] == b"exit":
                self.shell_over(int(message[1]), busy=message[2] == b"busy")
            elif message[0] == b"empty":
                self._busy = False
                if self._killing is not None:
                    self._killing.done()

    def shell_over(self, status: int, *, busy: bool) -> None:
        """Its shell has ended; busy: it left children."""
        if self._over or self.shell is None:
            return
        self._over, self._busy = True, busy
        if self._killing is not None:
            self._push()
        self._on_exit(self, status)

    def died(self) -> None:
        """It was killed; its children are the warden's now."""
        self._call = None  # A shell whose pid is unknown gets no command, and exits.
        self._act_early()
        shell = self.shell
        if self._over:
            if self._killing is not None:
                self._push()
        elif shell is not None and not (shell.pid and processes.parent_of(shell.pid) == 1):
            self.shell_over(signal.SIGKILL, busy=False)
