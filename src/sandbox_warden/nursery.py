"""Nurseries: small processes between the warden and the shells it starts.

A nursery is a subreaper: whatever a command starts, however it daemonises, stays below the nursery
in the process tree until the command is over, and can be found and killed. It serves one command at
a time. Left with children that live on in the background it stays until it is released, so that a
kill still finds them, and then goes away: they become the warden's. Otherwise it waits for the next
command. It starts shells with posix_spawn, at a third of what a fork of the warden would cost.
"""

import array
import os
import signal
import socket
from typing import Callable, List, Optional

from . import processes
from .killing import Killing
from .loop import READ, Loop
from .nursery_process import serve
from .processes import Process, Table
from .shell import Shell


class Nursery:
    """The warden's side of one nursery.

    on_exit(nursery, status): its shell is over. on_gone(nursery): so is all that was killed. It
    keeps what the shell left behind until it is released.
    """

    def __init__(
        self,
        loop: Loop,
        prelude_fd: int,
        on_exit: Callable[["Nursery", int], None],
        on_gone: Callable[["Nursery"], None],
    ) -> None:
        """Raises OSError where the box is out of processes."""
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
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        try:
            loop.watch(self._sock.fileno(), READ, lambda _events: self.listen())
            self.pid = os.fork()
        except OSError:
            self.close()
            theirs.close()
            raise
        if self.pid == 0:
            serve(theirs, prelude_fd)
        theirs.close()

    def start(self, shell: Shell) -> None:
        """Start bash on the shell's ends. Raises OSError."""
        fds = array.array("i", shell.child_fds)
        self._sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        shell.handed_over()
        self.shell = shell
        self._early = []
        self._call = None

    def go(self) -> Shell:
        """Its shell, awake: a process of the box may have stopped everything it could."""
        assert self.shell is not None
        pids = [self.pid, self.shell.pid]
        if not self.shell.pid:  # Stopped before its exec, maybe.
            pids = [self.pid, *(p.pid for p in processes.below(processes.scan()[0], [self.pid]))]
        for pid in pids:
            processes.kill(pid, signal.SIGCONT)
        return self.shell

    def call(self, let_go: Callable[[], None]) -> None:
        """Let the shell run its command as soon as its pid is known: a command may kill its own
        nursery, and can be found only by its pid then."""
        assert self.shell is not None
        if self.shell.pid:
            let_go()
        else:
            self._call = let_go

    @property
    def gone(self) -> bool:
        """Whether nothing is left of what was killed."""
        return self._killing is None or self._killing.gone

    def kill(self, find: Callable[[Table], List[Process]]) -> None:
        """End everything the command started. The shell's end is reported as usual.

        find: its processes, for when this nursery cannot tell.
        """
        self._once_started(lambda: self._kill(find))

    def signal(self, number: int) -> None:
        """To the group of the shell in one go, since one by one a process may be missed that is
        just being forked; and to those that have left the group."""
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
        """Whether it can tell that nothing is left."""
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
            pass  # It is dead, which will be noticed.

    def _signal(self, number: int) -> None:
        group = self.shell.pid if self.shell is not None else 0
        table, _ = processes.scan()
        members = {p.pid for p in processes.below(table, [self.pid, group])}
        if group in table:  # Not below its nursery, where that was killed.
            members.add(group)
        outside = [pid for pid in members if processes.group_of(pid) != group]
        if group and len(outside) < len(members):
            processes.kill(-group, number)
        for pid in outside:
            processes.kill(pid, number)

    def destroy(self) -> None:
        """For one that does not answer: its shell becomes the warden's own child."""
        processes.kill(self.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        """Something does not die: it hangs in the kernel, which will end it when it comes out."""
        self.close()
        if self._killing is not None:
            self._killing.done()
        self.shell_over(signal.SIGKILL, busy=False)

    def release(self) -> None:
        """The command is over. What it left in the background becomes the warden's."""
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
        """Take in what it has reported so far."""
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
                self.shell.pid, self._subreaper = int(message[1]), message[2] == b"subreaper"
                processes.kill(self.shell.pid, signal.SIGCONT)  # As go() does, if it came first.
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
        """Its shell has ended; busy: children of it are left."""
        if self._over or self.shell is None:
            return
        self._over, self._busy = True, busy
        if self._killing is not None:
            self._push()
        self._on_exit(self, status)

    def died(self) -> None:
        """Somebody has killed it. What it had is the warden's own now."""
        self._call = None  # A shell that nobody knows is not let go, and ends.
        self._act_early()
        shell = self.shell
        if self._over:
            if self._killing is not None:
                self._push()
        elif shell is not None and not (shell.pid and processes.parent_of(shell.pid) == 1):
            self.shell_over(signal.SIGKILL, busy=False)
