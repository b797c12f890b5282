"""The zygote's process: has the warden imported, and forks bare boxes (see bare.py).

    keeper (sh) ── PID 1 of the box, which becomes the warden when it gets a plan

Started by zygote.py with the interpreter of the boxes, and its socket as stdin. It ends with the
server; boxes and their keepers stay. A plan is read after the fork, so that nothing of one box is
in the memory of another.
"""

from __future__ import annotations

import array
import gc
import os
import signal
import socket
import sys

import sandbox_warden
from sandbox_warden import pid1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from sandbox_server.runtime.bubblewrap import confine, launcher
    from sandbox_server.runtime.bubblewrap.plan import BarePlan, Plan
else:
    import confine
    import launcher

_INSIDE = 1000
_LISTENER, _STDERR, _CHANNEL = 3, 2, 4
"""Of every box, in the order in which they are sent. Through the channel the keeper tells that it
is there, the server sends the path of the plan, and the warden tells that it serves."""
_FDS = 3
_FIRST_FREE = 5

# stdin is a pipe whose other end only the warden has: it ends with the box. Descriptor 3 is the
# end of another, by which the warden knows that its keeper lives.
_KEEPER = """
exec 2>/dev/null
read -r _
IFS='
'
set -f
for group in $BOX_GROUPS; do
  tries=0
  while [ -d "$group" ] && ! rmdir "$group" && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
  done
done
rm -rf -- ${BOX_CLAIM:+"$BOX_CLAIM"} "$BOX_FOLDER"
"""


def serve() -> None:
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps keepers.
    gc.collect()
    gc.freeze()
    while True:
        path, fds = _receive(requests)
        if not path:
            return
        if os.fork() == 0:
            keep(path, fds)
        for fd in fds:
            os.close(fd)


def _receive(sock: socket.socket) -> tuple[str, list[int]]:
    fds = array.array("i")
    size = socket.CMSG_SPACE(_FDS * fds.itemsize)
    message, control, _, _ = sock.recvmsg(4096, size, socket.MSG_CMSG_CLOEXEC)
    for _level, _kind, data in control:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message.decode(), list(fds)


def keep(path: str, fds: list[int]) -> NoReturn:
    """Start a bare box, and become its keeper."""
    try:
        os.setsid()
        os.umask(0o077)
        _arrange(*fds)
        plan: BarePlan = launcher.read_plan(path)
        ended, _held_by_warden = os.pipe()
        parent, here = os.pipe()
        try:
            start(plan, parent, close=(ended, here))
        except OSError as exc:
            _complain(exc)
        os.dup2(ended, 0)
        os.dup2(here, _LISTENER)
        os.closerange(_LISTENER + 1, os.sysconf("SC_OPEN_MAX"))
        _default_signals()
        words = ["/bin/sh", "-c", 'eval "$KEEPER"', "sandbox-keeper", plan["folder"]]
        os.execve(words[0], words, _keeper_variables(plan))
    except BaseException as exc:
        _complain(exc)
    finally:
        os._exit(1)


def _arrange(*fds: int) -> None:
    """They get numbers that are known, and everything else is closed."""
    null = os.open(os.devnull, os.O_RDWR)
    high = [os.dup(fd) for fd in fds]  # Their own numbers may be those they get.
    os.dup2(null, 0)
    os.dup2(null, 1)
    for fd, number in zip(high, (_LISTENER, _STDERR, _CHANNEL), strict=True):
        os.dup2(fd, number)
    os.closerange(_FIRST_FREE, os.sysconf("SC_OPEN_MAX"))


def _complain(exc: BaseException) -> None:
    os.write(_STDERR, f"sandbox: cannot prepare the box: {exc}\n".encode("utf-8", "replace"))


def _keeper_variables(plan: BarePlan) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "KEEPER": _KEEPER,
        "BOX_FOLDER": plan["folder"],
        "BOX_CLAIM": plan["claim"],
        "BOX_GROUPS": "\n".join(plan["groups"]),
    }


def start(plan: BarePlan, parent: int, *, close: tuple[int, ...]) -> None:
    """Fork PID 1 of the box. Raises OSError; then there is none.

    parent: ends with this process. close: what is this process's alone.
    """
    launcher.write_record(plan, keeper=os.getpid())
    os.write(_CHANNEL, b"k")
    procs_fds = launcher.make_groups(plan)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    confine.unshare(confine.NEWPID)
    if os.fork() == 0:
        try:
            for fd in (own, *close):
                os.close(fd)
            wait_for_plan(procs_fds, parent)
        except BaseException as exc:
            _complain(exc)
        finally:
            os._exit(1)
    confine.enter_pid_namespace(own)  # Or the programs of the keeper would start in the box's.


def wait_for_plan(procs_fds: list[int], parent: int) -> None:
    """Do what needs no plan, and wait for it. Without one, the box ends with the server."""
    os.setsid()
    confine.die_with_parent(parent)
    launcher.enter_groups(procs_fds)
    confine.unshare(confine.NEWNET | confine.NEWIPC | confine.NEWUTS)
    confine.raise_loopback()
    path = os.read(_CHANNEL, 4096)
    if path:
        run_box(launcher.read_plan(path.decode()), parent)


def run_box(plan: Plan, parent: int) -> None:
    # Not ahead: the groups become the root of their namespace, whose limits cannot be written from
    # inside of it, and a mount namespace does not see what its host mounts later.
    meters = launcher.limit_groups(plan)
    launcher.limit_process(plan)
    confine.unshare(confine.NEWNS | confine.NEWCGROUP)
    launcher.stay_informed()
    host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    launcher.stage(plan)
    os.umask(0o022)
    os.mkdir(plan["stage"] + "/root")
    root = confine.Root(plan["stage"] + "/root")
    root.build(plan["options"])
    confine.set_hostname(root.hostname)
    root.enter()
    assert plan["uid"] is not None
    confine.drop_privileges(plan["uid"], _INSIDE, host_proc, plan["seccomp"])
    confine.die_with_parent(parent)
    os.close(parent)
    become_warden(plan, root, meters)


def become_warden(plan: Plan, root: confine.Root, meters: dict[str, int]) -> NoReturn:
    os.chdir(root.folder)
    os.environ.clear()
    os.environ.update(root.environ)
    _default_signals()
    _move_warden(plan["warden_folder"])
    arguments = dict(part.split("=", 1) for part in plan["arguments"])
    arguments.update(listen_fd=str(_LISTENER), ready_fd=str(_CHANNEL))
    arguments.update({"meter_" + name: str(fd) for name, fd in meters.items()})
    pid1.main(arguments)
    os._exit(1)


def _move_warden(folder: str) -> None:
    """Where the warden finds its files, and what it imports later, in the box."""
    sys.path[:2] = [folder]
    sandbox_warden.__path__[:] = [folder + "/sandbox_warden"]
    sandbox_warden.__file__ = folder + "/sandbox_warden/__init__.py"


def _default_signals() -> None:
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "zygote_process":
    serve()
