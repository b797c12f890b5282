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

    from sandbox_server.runtime.bubblewrap.plan import BarePlan, Plan

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOATIME = 1, 2, 4, 1024
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 32, 4096, 16384, 1 << 19
_SIG_DFL = None
_LAST_SIGNAL = 64
_libc = ctypes.CDLL(None, use_errno=True)

# Numbers and flags of system calls that libc may be too old for; the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _MNT_DETACH = -100, 0x1000, 2
_TREE_FLAGS = 1 | os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x00100000


class _MountAttributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def main(path: str) -> NoReturn:
    try:
        run(read_plan(path))
    except OSError as exc:
        sys.exit(f"sandbox: cannot prepare the box: {exc}")


def read_plan(path: str) -> Plan:
    with open(path, "rb") as file:
        plan: Plan = marshal.load(file)
    os.unlink(path)  # It contains the box's environment variables.
    return plan


def run(plan: Plan) -> NoReturn:
    os.umask(0o077)
    listener = _keep_only_listener()
    write_record(plan, keeper=os.getppid())
    procs_fds = make_groups(plan)
    meters = limit_groups(plan)
    if plan["namespace"]:
        enter_namespace(plan["namespace"])
        stage(plan)
    enter_groups(procs_fds)
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


def write_record(plan: BarePlan, *, keeper: int) -> None:
    """Write box.json: from now on StateFolder.records() finds the box. Fails if the folder was
    renamed, because the box is being removed."""
    if not plan["record"]:
        return
    monitor = os.getpid()
    text = '{}, "keeper": [{}, {}], "monitor": [{}, {}]}}'.format(
        plan["record"][:-1], keeper, _started(keeper), monitor, _started(monitor)
    )
    path = os.path.join(plan["folder"], "box.json")
    _write(path + ".new", text, os.O_CREAT | os.O_TRUNC)
    os.rename(path + ".new", path)


def _started(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


# Limits


def make_groups(plan: BarePlan) -> list[int]:
    """Create the control groups. Returns the open cgroup.procs files."""
    for folder in plan["groups"]:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    return [os.open(os.path.join(g, "cgroup.procs"), os.O_WRONLY) for g in plan["groups"]]


def enter_groups(procs_fds: list[int]) -> None:
    """The kernel takes about 10 ms for the first, unless somebody else just did the same."""
    for fd in procs_fds:
        os.write(fd, b"0")
        os.close(fd)


def limit_groups(plan: Plan) -> dict[str, int]:
    """Set the limits. Returns the open files of the usage meters."""
    for path, value, required in plan["group_writes"]:
        try:
            _write(path, value)
        except OSError as exc:
            if required:
                raise OSError(exc.errno, f"{path}: {exc.strerror}") from exc
    meters = {}
    for name, path in plan["meters"].items():
        try:
            meters[name] = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # Optional: the warden works without it.
    return meters


def limit_process(plan: Plan) -> None:
    for name, value in plan["rlimits"].items():
        kind: int = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))
    with open("/proc/self/oom_score_adj", "rb") as file:
        score = int(file.read())
    if score < 0:  # A server may be exempt from the OOM killer, its boxes not.
        _write("/proc/self/oom_score_adj", "0")


def drop_to(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


# Mounts


def enter_namespace(kind: str) -> None:
    uid, gid = os.getuid(), os.getgid()
    user = kind == "user"
    check(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)), "unshare")
    if user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    stay_informed()


def stay_informed() -> None:
    """Slave, not private: an unmount on the host must also happen in boxes."""
    mount("none", "/", "", _MS_REC | _MS_SLAVE, "")


def _write(path: str, text: str, flags: int = 0) -> None:
    """Without a text file, for which a new process has to import its encoding."""
    fd = os.open(path, os.O_WRONLY | flags, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


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
        uid, owner = plan["uid"], plan["disk_owner"]
        if owner is not None and owner != uid:
            _show_as(target, owner, os.getuid() if uid is None else uid, owner)
        elif uid is not None:
            os.chown(target, uid, uid)
        stage_volumes(plan, target)


def stage_volumes(plan: Plan, workspace: str) -> None:
    """bubblewrap binds the workspace with what is mounted in it. The folders are there."""
    uid = os.getuid() if plan["uid"] is None else plan["uid"]
    for kind, source, name, read_only, owner, group in plan["volumes"]:
        target = os.path.join(workspace, name)
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOATIME | (_MS_RDONLY if read_only else 0)
        if kind:
            mount(source, target, kind, flags, plan["volume_options"])
        else:
            mount(source, target, "", _MS_BIND, "")
            mount("none", target, "", _MS_REMOUNT | _MS_BIND | flags, "")
        if (owner, group) != (uid, uid):
            _show_as(target, owner, uid, group)


def _show_as(target: str, owner: int, uid: int, group: int) -> None:
    """Show the files of one uid and gid on a mounted file system as another's (Linux 5.12)."""
    users = _user_namespace(f"{owner} {uid} 1", f"{group} {uid} 1")
    try:
        tree = check(
            _libc.syscall(_OPEN_TREE, _AT_FDCWD, target.encode(), _TREE_FLAGS), "open_tree"
        )
        attributes = _MountAttributes(attr_set=_MOUNT_ATTR_IDMAP, userns_fd=users)
        size = ctypes.sizeof(attributes)
        reference = ctypes.byref(attributes)
        changed = _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, reference, size)
        check(changed, "mount_setattr")
        check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount of {target}")
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        moved = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), flags)
        check(moved, "move_mount")
        os.close(tree)
    finally:
        os.close(users)


def _user_namespace(uids: str, gids: str) -> int:
    """A new user namespace with a map of uids and gids: it lives as long as it is open."""
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        if _libc.unshare(_CLONE_NEWUSER) == 0:
            # Its pid as /proc has it: this may be in a pid namespace with numbers of its own.
            os.write(ready[1], os.readlink("/proc/self").encode())
            os.close(done[1])
            os.read(done[0], 1)
        os._exit(0)
    try:
        os.close(ready[1])
        child = os.read(ready[0], 16).decode()
        if not child:
            raise OSError(1, "a user namespace cannot be made")
        _write(f"/proc/{child}/uid_map", uids)
        _write(f"/proc/{child}/gid_map", gids)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    finally:
        for fd in (ready[0], *done):
            os.close(fd)
        _reap(pid)


def _reap(pid: int) -> None:
    try:  # noqa: SIM105 (contextlib is not imported here)
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # The kernel does, where its signal is ignored.


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
    check(done, f"mount of {source} on {target}")


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


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
