"""The nursery's process: starts a shell for the descriptors it gets, and waits for it.

It reports `pid N SESSION KIND` for a shell it started, `exit STATUS idle` or `exit STATUS busy`
(children are left) for one that ended, and `empty` when asked to wait for the children.
"""

import array
import fcntl
import os
import signal
import socket
import termios
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from .shell import ARGV, INTERACTIVE_ARGV, PRELUDE_TARGET, TARGETS, TYPED, prctl
from .state import WORKSPACE
from .stdin import signal_foreground

_PR_SET_CHILD_SUBREAPER = 36
_BASH = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
"""Not from PATH, which may start with folders the user can write to."""
_DEFAULT = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""For a command no signal is ignored or blocked. Python ignores two, and a server that was started
with `nohup` or with `&` in a script others."""
_SIGNALS: Dict[str, Any] = {"setsigdef": _DEFAULT, "setsigmask": ()}
_PLAIN = b"plain"
Moves = List[Tuple[int, int]]
"""Descriptors of the nursery, and the numbers that they have in a shell."""


def fork() -> Tuple[int, socket.socket]:
    """Start a nursery: its pid, and the socket to it. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            _serve(theirs)
    ours.setblocking(False)
    return pid, ours


def _serve(sock: socket.socket) -> NoReturn:
    """Main function of the forked process."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _close_others(sock.fileno())
        kind = _become_subreaper()
        if kind == _PLAIN:
            os.setsid()
        _enter_workspace()
        environ = dict(os.environ, BASH_ENV="/dev/fd/%d" % PRELUDE_TARGET)
        bash = next(path for path in _BASH if os.access(path, os.X_OK))
        while True:
            message, fds = _receive(sock)
            if not message:
                break
            if not fds:
                _wait_for_all()
                sock.send(b"empty")
                continue
            moves = list(zip(fds, TARGETS))
            terminal = os.isatty(fds[0])
            try:
                if terminal:
                    argv = INTERACTIVE_ARGV if message == TYPED else ARGV
                    keys = fds[len(TARGETS)] if len(fds) > len(TARGETS) else None
                    pid = _spawn_on_terminal(bash, argv, environ, moves, keys)
                else:
                    pid = _spawn(bash, environ, moves, own_session=kind != _PLAIN)
            except OSError as exc:
                sock.send(b"exit %d idle" % -(exc.errno or 1))
                continue
            finally:
                for fd in fds:
                    os.close(fd)
            session = os.getpid() if kind == _PLAIN and not terminal else pid
            sock.send(b"pid %d %d %s" % (pid, session, kind))
            status = _wait_for(pid)
            sock.send(b"exit %d %s" % (status, b"idle" if _childless() else b"busy"))
    finally:
        os._exit(0)


def _spawn(bash: str, environ: Dict[str, str], moves: Moves, *, own_session: bool) -> int:
    """own_session: otherwise it has a group of its own in the nursery's session, which gVisor does
    not hang up when one of it ends while another is stopped."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in moves]
    if own_session:
        return os.posix_spawn(bash, ARGV, environ, file_actions=actions, setsid=True, **_SIGNALS)
    return os.posix_spawn(bash, ARGV, environ, file_actions=actions, setpgroup=0, **_SIGNALS)


def _spawn_on_terminal(
    bash: str, argv: List[str], environ: Dict[str, str], moves: Moves, keys: Optional[int]
) -> int:
    """The same, with its stdin as its controlling terminal, which posix_spawn cannot do. keys:
    where signals of keys come from, if not from the kernel."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for fd, to in moves:
            os.dup2(fd, to)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if keys is not None and not os.fork():
            _close_others(keys)
            signal_foreground(keys)
        os.execve(bash, argv, environ)
    finally:
        os._exit(127)


def _enter_workspace() -> None:
    try:
        os.chdir(WORKSPACE)
    except OSError:
        os.chdir("/")  # The user may have moved or closed it; the shell reports that.


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
        return _PLAIN  # gVisor has no subreapers: orphans become the warden's children.
    return b"subreaper"


def _receive(sock: socket.socket) -> Tuple[bytes, List[int]]:
    fds = array.array("i")
    size = socket.CMSG_SPACE((len(TARGETS) + 1) * fds.itemsize)
    message, control, _, _ = sock.recvmsg(1, size, socket.MSG_CMSG_CLOEXEC)
    for _level, _kind, data in control:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def _wait_for(pid: int) -> int:
    while True:
        done, status = os.waitpid(-1, 0)
        if done == pid:
            return status


def _wait_for_all() -> None:
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _childless() -> bool:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True
