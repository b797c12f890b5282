"""Puts a forked process into a box: does by itself what bubblewrap does for a program it starts.

It takes bubblewrap's own options (see mounts.py), so a box looks the same either way. An option it
does not know is an error, never skipped. Only for root: the namespaces belong to the host's root,
so that even a process with all capabilities inside could not change them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandbox_server.runtime.bubblewrap.launcher import check, mount
else:
    from launcher import check, mount

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_BIND, _MS_REC = 4096, 16384
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_MOUNT_SETATTR = 442
_MOUNT_ATTR = struct.Struct("4Q")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Root:
    """The root of a box while it is built, from bubblewrap's options."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.environ: dict[str, str] = {}
        self.hostname = ""
        self.folder = "/"
        self._perms = 0o755
        mount("tmpfs", top, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
        self._handlers: dict[str, tuple[int, Callable[..., None]]] = {
            "--unshare-user": (0, _ignore),
            "--unshare-pid": (0, _ignore),
            "--unshare-ipc": (0, _ignore),
            "--unshare-net": (0, _ignore),
            "--unshare-uts": (0, _ignore),
            "--unshare-cgroup-try": (0, _ignore),
            "--disable-userns": (0, _ignore),
            "--as-pid-1": (0, _ignore),
            "--die-with-parent": (0, _ignore),
            "--new-session": (0, _ignore),
            "--cap-drop": (1, _ignore),
            "--uid": (1, _ignore),
            "--gid": (1, _ignore),
            "--clearenv": (0, _ignore),
            "--hostname": (1, self._set_hostname),
            "--setenv": (2, self.environ.__setitem__),
            "--chdir": (1, self._chdir),
            "--perms": (1, self._set_perms),
            "--dir": (1, self._dir),
            "--symlink": (2, self._symlink),
            "--ro-bind": (2, self._ro_bind),
            "--ro-bind-try": (2, self._ro_bind_try),
            "--bind": (2, self._bind),
            "--dev-bind": (2, self._dev_bind),
            "--proc": (1, self._proc),
            "--dev": (1, self._dev),
            "--remount-ro": (1, self._remount_ro),
        }

    def build(self, options: list[str]) -> None:
        words: Iterator[str] = iter(options)
        for word in words:
            if word not in self._handlers:
                raise OSError(0, "unknown option " + word)
            count, handler = self._handlers[word]
            handler(*[next(words) for _ in range(count)])

    def enter(self) -> None:
        """Make it the root of this process; nothing of the old one stays reachable."""
        os.chdir(self.top)
        check(_libc.pivot_root(b".", b"."), "pivot_root")
        check(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
        os.chdir("/")

    def _set_hostname(self, name: str) -> None:
        self.hostname = name

    def _chdir(self, path: str) -> None:
        self.folder = path

    def _set_perms(self, perms: str) -> None:
        self._perms = int(perms, 8)

    def _dir(self, path: str) -> None:
        os.makedirs(self.top + path, exist_ok=True)
        os.chmod(self.top + path, self._perms)

    def _symlink(self, target: str, path: str) -> None:
        os.symlink(target, self.top + path)

    def _ro_bind_try(self, source: str, path: str) -> None:
        if os.path.exists(source):
            self._ro_bind(source, path)

    def _ro_bind(self, source: str, path: str) -> None:
        self._bind(source, path, read_only=True)

    def _bind(self, source: str, path: str, *, read_only: bool = False) -> None:
        target = self._mount_point(path, is_folder=os.path.isdir(source))
        mount(source, target, "", _MS_BIND | _MS_REC, "")
        flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
        _set_flags(target, flags, recursive=True)

    def _dev_bind(self, source: str, path: str) -> None:
        node = self._mount_point(path, is_folder=False)
        mount(source, node, "", _MS_BIND, "")
        _set_flags(node, _MS_NOSUID | _MS_NOEXEC, recursive=False)

    def _mount_point(self, path: str, *, is_folder: bool) -> str:
        target = self.top + path
        if not os.path.exists(target):
            os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
            if not is_folder:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        return target

    def _proc(self, path: str) -> None:
        target = self._mount_point(path, is_folder=True)
        mount("proc", target, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
        for name in _PROC_READ_ONLY:
            part = target + "/" + name
            if os.path.exists(part):
                mount(part, part, "", _MS_BIND | _MS_REC, "")
                flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
                _set_flags(part, flags, recursive=True)

    def _dev(self, path: str) -> None:
        target = self._mount_point(path, is_folder=True)
        mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
        for name in _DEVICES:
            node = self._mount_point(path + "/" + name, is_folder=False)
            mount("/dev/" + name, node, "", _MS_BIND, "")
            _set_flags(node, _MS_NOSUID | _MS_NOEXEC, recursive=False)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", target + "/" + name)
        os.symlink("/proc/self/fd", target + "/fd")
        os.symlink("/proc/kcore", target + "/core")
        os.mkdir(target + "/shm")
        os.mkdir(target + "/pts")
        options = "newinstance,ptmxmode=0666,mode=620"
        mount("devpts", target + "/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, options)
        os.symlink("pts/ptmx", target + "/ptmx")

    def _remount_ro(self, path: str) -> None:
        _set_flags(self.top + path, _MS_RDONLY, recursive=False)


def _ignore(*_: str) -> None:
    """Isolation is not up to the options here: a box always has all of it."""


def _set_flags(path: str, flags: int, *, recursive: bool) -> None:
    """Set mount flags, which have the same values in mount_setattr(2). Needs Linux 5.12."""
    attributes = _MOUNT_ATTR.pack(flags, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_long(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_ulong(_AT_RECURSIVE if recursive else 0),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    check(done, "mount_setattr of " + path)


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), "unshare")


def enter_pid_namespace(namespace: int) -> None:
    """Where children of this process start from now on."""
    check(_libc.setns(namespace, NEWPID), "setns")


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def set_hostname(name: str) -> None:
    check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def drop_privileges(uid: int, inside: int, host_proc: int, seccomp: bytes) -> None:
    """Become `uid` of the host, which is `inside` in user namespaces of its own, without any
    capability and without a way to get one.

    host_proc: a descriptor of the host's /proc, since /proc/sys of the box is read-only.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _enter_user_namespace(uid, inside, host_proc)
    # The namespace below the first is the last one that can be made.
    _write(host_proc, "sys/user/max_user_namespaces", "1")
    _enter_user_namespace(inside, inside, host_proc)
    os.close(host_proc)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    check(_libc.capset(header, bytes(24)), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    if seccomp:
        _filter_system_calls(seccomp)


def die_with_parent(parent: int) -> None:
    """A change of user undoes this.

    parent: the end of a pipe whose other end the parent holds: it may be dead already."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    os.set_blocking(parent, False)
    try:
        if os.read(parent, 1) == b"":
            os._exit(1)
    except BlockingIOError:
        pass


def _enter_user_namespace(outside: int, inside: int, proc: int) -> None:
    unshare(NEWUSER)
    # A change of user makes a process undumpable, and its files in /proc root's.
    _prctl(_PR_SET_DUMPABLE, 1)
    _write(proc, "self/setgroups", "deny")
    _write(proc, "self/uid_map", f"{inside} {outside} 1")
    _write(proc, "self/gid_map", f"{inside} {outside} 1")


def _write(folder: int, name: str, text: str) -> None:
    fd = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _prctl(option: int, value: int) -> None:
    check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _filter_system_calls(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions of 8 bytes, padding, their address.
    arguments = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    done = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, arguments, 0, 0)
    check(done, "seccomp")
