"""Measures the confinement of a box from inside and prints the facts as JSON. Runs as the box's
user: standard library only, Python 3.8 or newer.

    python3 - facts PIDS CPUS DISK_BYTES PLACES…     PIDS 0: processes are not counted
    python3 - memory LIMIT_BYTES
"""

import ctypes
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

MIB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS = 21, 39
NEW = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
       "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}  # fmt: skip
ROOM = ctypes.create_string_buffer(256)
# Name: numbers on x86_64 and aarch64, then arguments that do no harm if the call is allowed.
CALLS: Dict[str, Tuple[Any, ...]] = {
    "mount": ((165, 40), b"none", b"/tmp", b"tmpfs", 0, None),
    "pivot_root": ((155, 41), b"/tmp", b"/tmp"),
    "chroot": ((161, 51), b"/tmp"),
    "fsopen": ((430, 430), b"tmpfs", 0),
    "open_tree": ((428, 428), -100, b"/", 1),
    "keyctl": ((250, 219), 0, -3, 1),
    "add_key": ((248, 217), b"user", b"x", b"y", 1, -3),
    "bpf": ((321, 280), 0, ROOM, 72),
    "perf_event_open": ((298, 241), ROOM, 0, -1, -1, 0),
    "userfaultfd": ((323, 282), 1),
    "io_uring_setup": ((425, 425), 4, ROOM),
    "syslog": ((103, 116), 3, ROOM, 10),
    "sethostname": ((170, 161), b"sandbox", 7),
}
CALLS.update({"unshare " + name: ((272, 97), flag) for name, flag in NEW.items()})
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "core"}
SETTINGS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper",
    "/sys/power/state", "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)  # fmt: skip
OF_THE_HOST = (
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
    "/run/systemd/private", "/run/dbus/system_bus_socket", "/root/.ssh", "/etc/shadow",
    "/proc/kcore", "/sys/kernel/debug/tracing", "/sys/firmware/efi",
)  # fmt: skip
METADATA = ("169.254.169.254", 80)
CONNECT_S = 0.5
BURN_S = 1.0


def facts(pids: int, cpus: float, disk_bytes: int, places: List[str]) -> Dict[str, Any]:
    return {
        "uid": os.getresuid(),
        "gid": os.getresgid(),
        "groups": os.getgroups(),
        "uid_map": read("/proc/self/uid_map").split(),
        "status": status(),
        "no_new_privs": LIBC.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        "seccomp": LIBC.prctl(PR_GET_SECCOMP, 0, 0, 0, 0),
        "namespaces": namespaces(),
        "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "calls": [name for name, call in CALLS.items() if succeeds(call)],
        "writable": writable(places),
        "settings": [path for path in SETTINGS if opens(path, os.O_WRONLY)],
        "of_the_host": [path for path in OF_THE_HOST if opens(path, os.O_RDONLY)],
        "devices": devices(),
        "mounts": len(read("/proc/self/mounts").splitlines()),
        "setuid": setuid(),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "metadata": reaches(METADATA),
        "places": {place: room(place) for place in places},
        "file_size": file_size(places[0], disk_bytes),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "cpus": burnt(int(cpus) + 1),
        "pids": forked(pids + 64) if pids else None,
    }


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def status() -> Dict[str, str]:
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Seccomp", "NoNewPrivs")
    pairs = [line.split(":", 1) for line in read("/proc/self/status").splitlines() if ":" in line]
    return {name: value.strip() for name, value in pairs if name in wanted}


def namespaces() -> Dict[str, str]:
    found = {}
    for name in NEW:
        label = {"mount": "mnt"}.get(name, name)
        try:
            found[name] = os.readlink("/proc/self/ns/" + label)
        except OSError:
            pass
    return found


def child(work: Callable[[], int]) -> int:
    """The exit code of work in a child process, so that what it gains does not affect the next."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def succeeds(call: Tuple[Any, ...]) -> bool:
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if column is None:
        return False
    numbers, arguments = call[0], call[1:]

    def work() -> int:
        return 0 if LIBC.syscall(ctypes.c_long(numbers[column]), *arguments) >= 0 else 1

    return child(work) == 0


def opens(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def writable(places: List[str]) -> List[str]:
    """Folders outside of the places in which a file can be created."""
    folders = {line.split()[1] for line in read("/proc/mounts").splitlines()}
    for folder, names, _ in os.walk("/"):
        folders.add(folder)
        if folder.count("/") >= 3 or folder.startswith(("/proc", "/sys")):
            names.clear()
    found = []
    for folder in folders:
        path = os.path.join(folder, ".doctor")
        if any((folder + "/").startswith(place + "/") for place in places):
            continue
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.unlink(path)
        except OSError:
            continue
        found.append(folder)
    return sorted(found)


def devices() -> List[str]:
    found = []
    for name in sorted(os.listdir("/dev")):
        try:
            kind = os.stat("/dev/" + name).st_mode
        except OSError:
            continue
        device = stat.S_ISBLK(kind) or stat.S_ISCHR(kind)
        if device and name not in DEVICES and opens("/dev/" + name, os.O_RDONLY):
            found.append(name)
    return found


def setuid() -> List[Dict[str, Any]]:
    """setuid and setgid programs."""
    found = []
    for folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            try:
                about = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode) and about.st_mode & (stat.S_ISUID | stat.S_ISGID):
                nosuid = bool(os.statvfs(path).f_flag & os.ST_NOSUID)
                found.append({"path": path, "nosuid": nosuid})
    return found


def reaches(address: Tuple[str, int]) -> bool:
    with socket.socket() as link:
        link.settimeout(CONNECT_S)
        return link.connect_ex(address) == 0


def room(place: str) -> Dict[str, Any]:
    about = os.statvfs(place)
    return {"bytes": about.f_blocks * about.f_frsize, "nosuid": bool(about.f_flag & os.ST_NOSUID)}


def file_size(folder: str, disk_bytes: int) -> bool:
    """Whether a sparse file can be larger than its disk."""
    path = os.path.join(folder, ".doctor-%d" % os.getpid())

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open(path, "wb") as file:
            os.ftruncate(file.fileno(), 2 * disk_bytes + 64 * MIB)
        return 0

    try:
        return child(work) == 0
    finally:
        if os.path.exists(path):
            os.unlink(path)


def burnt(processes: int) -> float:
    """How many CPUs this many busy processes get."""

    def burn() -> int:
        until = time.monotonic() + BURN_S
        while time.monotonic() < until:
            pass
        return 0

    def work() -> int:
        began = time.monotonic()
        running: List[int] = []
        for _ in range(processes):
            pid = os.fork()
            if pid == 0:
                os._exit(burn())
            running.append(pid)
        for pid in running:
            os.waitpid(pid, 0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(end, b"%f" % ((used.ru_utime + used.ru_stime) / (time.monotonic() - began)))
        return 0

    begin, end = os.pipe()
    child(work)
    os.close(end)
    with open(begin, "rb") as file:
        return float(file.read() or 0)


def forked(most: int) -> int:
    """How many processes can be started, up to `most`."""
    wait, go = os.pipe()
    running: List[int] = []
    try:
        while len(running) < most:
            pid = os.fork()
            if pid == 0:
                os.close(go)
                os.read(wait, 1)
                os._exit(0)
            running.append(pid)
    except OSError:
        pass
    os.close(go)
    for pid in running:
        os.waitpid(pid, 0)
    return len(running)


def memory(limit: int) -> Dict[str, int]:
    """How much memory a process gets, tried up to 64 MiB above the limit."""
    begin, end = os.pipe()
    step = 8 * MIB

    def work() -> int:
        held: List[mmap.mmap] = []
        while len(held) * step < limit + 64 * MIB:
            piece = mmap.mmap(-1, step)
            piece.write(b"x" * step)
            held.append(piece)
            os.write(end, b".")
        return 0

    child(work)
    os.close(end)
    with open(begin, "rb") as file:
        return {"memory": len(file.read()) * step}


if __name__ == "__main__":
    result = (
        memory(int(sys.argv[2]))
        if sys.argv[1] == "memory"
        else facts(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    )
    print(json.dumps(result))
