"""The nursery's process: starts a shell for the descriptors it gets, and waits for it.

It reports `pid N KIND` for a shell it started, `exit STATUS idle` or `exit STATUS busy` (children
are left) for one that ended, and `empty` when asked to wait for the children.
"""

import array
import os
import signal
import socket
from typing import List, NoReturn, Tuple

from .shell import ARGV, PRELUDE_TARGET, TARGETS, prctl
from .state import WORKSPACE

_PR_SET_CHILD_SUBREAPER = 36
_BASH = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
"""Not from PATH, which may start with folders the user can write to."""
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these signals, and a command would inherit that."""


def serve(sock: socket.socket, prelude_fd: int) -> NoReturn:
    """Main function of the forked process."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _close_others(sock.fileno(), prelude_fd)
        kind = _become_subreaper()
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
            sock.send(b"exit %d %s" % (status, b"idle" if _childless() else b"busy"))
    finally:
        os._exit(0)


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
        return b"plain"  # gVisor has no subreapers: orphans become the warden's children.
    return b"subreaper"


def _receive(sock: socket.socket) -> Tuple[bytes, List[int]]:
    fds = array.array("i")
    size = socket.CMSG_SPACE(len(TARGETS) * fds.itemsize)
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
