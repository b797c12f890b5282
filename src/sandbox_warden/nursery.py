"""Nurseries: small processes between the warden and the shells it starts.

A nursery is a subreaper: whatever a command starts, however it daemonises, stays below the nursery
in the process tree until the command ends, and can be found and killed. It serves one command at a
time. Left with children that live on in the background it goes away, and they become the warden's;
otherwise it waits for the next one. It starts shells with posix_spawn, at a third of what a fork of
the warden would cost.
"""

import array
import os
import signal
import socket
from typing import Callable, List, NoReturn, Optional

from . import processes
from .loop import READ, Loop
from .shell import ARGV, PRELUDE_TARGET, TARGETS, WORKSPACE, Shell, prctl

_PR_SET_CHILD_SUBREAPER = 36
_BASH = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
"""Not by PATH, which may begin with folders the user can write to."""
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; a command would inherit that."""


class Nursery:
    """The warden's side of one nursery."""

    def __init__(
        self, loop: Loop, prelude_fd: int, on_exit: Callable[["Nursery", int], None]
    ) -> None:
        """Raises OSError where the box is out of processes."""
        self.shell: Optional[Shell] = None
        self.alive = True
        self._subreaper = True
        self._early: List[Callable[[], None]] = []
        self._loop = loop
        self._on_exit = on_exit
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.pid = os.fork()
        except OSError:
            self._sock.close()
            theirs.close()
            raise
        if self.pid == 0:
            _serve(theirs, prelude_fd)
        theirs.close()
        self._sock.setblocking(False)
        loop.watch(self._sock.fileno(), READ, lambda _events: self.listen())

    def start(self, shell: Shell) -> bool:
        """Start bash on the shell's ends; False where the nursery has been killed meanwhile.
        Raises OSError."""
        fds = array.array("i", shell.child_fds)
        try:
            self._sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            return False
        shell.handed_over()
        self.shell = shell
        self._early = []
        return True

    def go(self) -> Shell:
        """Its shell, awake: a process of the box may have stopped everything it could."""
        assert self.shell is not None
        # A shell that has been waiting and whose pid is not known may be stopped before its exec.
        below = [self.shell.pid] if self.shell.pid else processes.descendants(self.pid)
        for pid in (self.pid, *below):
            processes.kill(pid, signal.SIGCONT)
        return self.shell

    def kill(self, marker: bytes) -> None:
        """End everything the command started. The shell's end is reported as usual."""
        self._once_started(lambda: self._kill(marker))

    def signal(self, number: int) -> None:
        """To the group of the shell in one go, since one by one a process may be missed that is
        just being forked; and to those that have left the group."""
        self._once_started(lambda: self._signal(number))

    def _once_started(self, act: Callable[[], None]) -> None:
        self.listen()
        if self.alive and self.shell is not None and not self.shell.pid:
            self._early.append(act)
        else:
            act()

    def _kill(self, marker: bytes) -> None:
        since = None if self._subreaper else self._began()
        processes.kill_all(
            lambda: self._members() + (processes.strays(since, marker) if since else [])
        )

    def _signal(self, number: int) -> None:
        members = self._members()
        group = self.shell.pid if self.shell is not None else 0
        outside = [pid for pid in members if processes.group_of(pid) != group]
        if group and len(outside) < len(members):
            processes.kill_group(group, number)
        for pid in outside:
            processes.kill(pid, number)

    def destroy(self) -> None:
        """For one that does not answer: its shell becomes the warden's own child."""
        processes.kill(self.pid, signal.SIGKILL)

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
                early, self._early = self._early, []
                for act in early:
                    act()
            elif message[0] == b"exit":
                if message[2] == b"retired":
                    self.close()
                self._on_exit(self, int(message[1]))

    def _members(self) -> List[int]:
        found = processes.descendants(self.pid)
        shell = self.shell.pid if self.shell is not None else 0
        if not found and shell and processes.exists(shell):  # Its nursery has been killed.
            found = [*processes.descendants(shell), shell]
        return found

    def _began(self) -> Optional[int]:
        try:
            return processes.started(self.shell.pid) if self.shell is not None else None
        except (OSError, ValueError):
            return None


def _serve(sock: socket.socket, prelude_fd: int) -> NoReturn:
    """The life of a nursery, in the child."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _close_others(sock.fileno(), prelude_fd)
        kind = _become_subreaper()
        _enter_workspace()
        environ = dict(os.environ, BASH_ENV="/dev/fd/%d" % PRELUDE_TARGET)
        bash = next(path for path in _BASH if os.access(path, os.X_OK))
        while True:
            fds = _receive(sock)
            if not fds:
                break
            actions = [(os.POSIX_SPAWN_DUP2, prelude_fd, PRELUDE_TARGET)]
            actions += [(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in zip(fds, TARGETS)]
            try:
                pid = os.posix_spawn(
                    bash, ARGV, environ, file_actions=actions, setsid=True, setsigdef=_IGNORED
                )
            except OSError as exc:
                sock.send(b"exit %d idle" % -(exc.errno or 1))
                continue
            finally:
                for fd in fds:
                    os.close(fd)
            sock.send(b"pid %d %s" % (pid, kind))
            status = _wait_for(pid)
            idle = _childless()
            sock.send(b"exit %d %s" % (status, b"idle" if idle else b"retired"))
            if not idle:
                break
    finally:
        os._exit(0)


def _enter_workspace() -> None:
    try:
        os.chdir(WORKSPACE)
    except OSError:
        os.chdir("/")  # Its user may have closed or moved it; a shell says so.


def _close_others(*keep: int) -> None:
    start = 3
    for fd in sorted(keep):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _become_subreaper() -> bytes:
    try:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError:
        return b"plain"  # gVisor has no subreapers: orphans become the warden's children.
    return b"subreaper"


def _receive(sock: socket.socket) -> List[int]:
    fds = array.array("i")
    size = socket.CMSG_SPACE(len(TARGETS) * fds.itemsize)
    _, control, _, _ = sock.recvmsg(1, size, socket.MSG_CMSG_CLOEXEC)
    for _level, _kind, data in control:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _wait_for(pid: int) -> int:
    while True:
        done, status = os.waitpid(-1, 0)
        if done == pid:
            return status


def _childless() -> bool:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True
