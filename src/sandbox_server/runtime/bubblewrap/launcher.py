"""The program between a box's keeper and bubblewrap: does what bubblewrap cannot, then execs it.

`python -I -S launcher.py PLAN`, with the box's listening socket as stdin. It makes no decisions:
everything is in the plan (see plan.py). It does not import json, signal and typing, which would
triple its start time.

What it creates outside of its own namespaces (the record, control groups), the keeper removes. Its
mounts and the disk behind them end with the mount namespace.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from sandbox_server.runtime.bubblewrap.plan import Plan

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_NOATIME = 2, 4, 1024
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_SIG_DFL = None
_LAST_SIGNAL = 64
_libc = ctypes.CDLL(None, use_errno=True)


def main(path: str) -> NoReturn:
    try:
        with open(path, "rb") as file:
            plan: Plan = marshal.load(file)
        os.unlink(path)  # It contains the box's environment variables.
        run(plan)
    except OSError as exc:
        sys.exit(f"sandbox: cannot prepare the box: {exc}")


def run(plan: Plan) -> NoReturn:
    os.umask(0o077)
    listener = _keep_only_listener()
    write_record(plan)
    procs_fds, meters = make_groups(plan)
    if plan["namespace"]:
        enter_namespace(plan["namespace"])
        stage(plan)
    for fd in procs_fds:
        os.write(fd, b"0")
        os.close(fd)
    limit_process(plan)
    if plan["uid"] is not None:
        drop_to(plan["uid"])
    become_bwrap(plan, listener, meters)


def _keep_only_listener() -> int:
    """Close all other inherited descriptors: bubblewrap would pass them on to the box."""
    os.dup2(0, 3)
    os.closerange(4, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return 3


def write_record(plan: Plan) -> None:
    """Write box.json: from now on StateFolder.records() finds the box. Fails if the folder was
    renamed, because the box is being removed."""
    if not plan["record"]:
        return
    keeper, monitor = os.getppid(), os.getpid()
    text = '{}, "keeper": [{}, {}], "monitor": [{}, {}]}}'.format(
        plan["record"][:-1], keeper, _started(keeper), monitor, _started(monitor)
    )
    path = os.path.join(plan["folder"], "box.json")
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def _started(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


# Limits


def make_groups(plan: Plan) -> tuple[list[int], dict[str, int]]:
    """Create the control groups. Returns the open cgroup.procs files and the usage meters."""
    for folder in plan["groups"]:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    for path, value, required in plan["group_writes"]:
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(value)
        except OSError as exc:
            if required:
                raise OSError(exc.errno, f"{path}: {exc.strerror}") from exc
    procs_fds = [os.open(os.path.join(g, "cgroup.procs"), os.O_WRONLY) for g in plan["groups"]]
    meters = {}
    for name, path in plan["meters"].items():
        try:
            meters[name] = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # Optional: the warden works without it.
    return procs_fds, meters


def limit_process(plan: Plan) -> None:
    for name, value in plan["rlimits"].items():
        kind: int = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))
    with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < 0:  # A server may be exempt from the OOM killer, its boxes not.
            file.seek(0)
            file.write("0")


def drop_to(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


# Mounts


def enter_namespace(kind: str) -> None:
    uid, gid = os.getuid(), os.getgid()
    user = kind == "user"
    _check(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)), "unshare")
    if user:
        _write_own("setgroups", "deny")
        _write_own("uid_map", f"{uid} {uid} 1")
        _write_own("gid_map", f"{gid} {gid} 1")
    # Slave, not private: an unmount on the host must also happen in boxes.
    mount("none", "/", "", _MS_REC | _MS_SLAVE, "")


def _write_own(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)


def stage(plan: Plan) -> None:
    """Mount what bubblewrap binds below one folder, visible in this mount namespace only."""
    top = plan["stage"]
    mount("tmpfs", top, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
    for name, source in plan["binds"].items():
        mount(source, _mount_point(top, name, like=source), "", _MS_BIND | _MS_REC, "")
    for name, options in plan["tmpfs"].items():
        target = _mount_point(top, name, like=top)
        mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    if plan["disk"]:
        target = _mount_point(top, "workspace", like=top)
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOATIME
        mount(plan["disk"], target, "ext4", flags, plan["disk_options"])
        if os.path.exists(target + "/lost+found"):
            os.rmdir(target + "/lost+found")
        if plan["uid"] is not None:
            os.chown(target, plan["uid"], plan["uid"])


def _mount_point(top: str, name: str, *, like: str) -> str:
    path = os.path.join(top, name)
    if os.path.isdir(like):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return path


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    done = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(done, f"mount of {source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# Exec


def become_bwrap(plan: Plan, listener: int, meters: dict[str, int]) -> NoReturn:
    """Pass options in a memfd: a command line is readable by every user of the host."""
    argv = [plan["bwrap"], "--args", str(_memory_file("\0".join(plan["options"]).encode()))]
    if plan["seccomp"]:
        argv += ["--seccomp", str(_memory_file(plan["seccomp"]))]
    argv += plan["command"]
    if plan["record"]:
        argv += [f"listen_fd={listener}", *(f"meter_{n}={fd}" for n, fd in meters.items())]
    for fd in (listener, *meters.values()):
        os.set_inheritable(fd, True)
    for number in range(1, _LAST_SIGNAL + 1):  # The keeper's shell and Python ignore some.
        _libc.signal(number, _SIG_DFL)
    os.umask(0o022)
    os.chdir("/")
    os.execv(argv[0], argv)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("sandbox", 0)
    os.set_inheritable(fd, True)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


if __name__ == "__main__":
    main(sys.argv[1])
