"""The kernel of the host is out of reach (docs/security.md, 20 to 27)."""

import os
from pathlib import Path

import pytest

from sandbox_server.runtime import hidden
from sandbox_server.runtime.warden.client import WardenClient

from .conftest import ask_python

CALLS = """
import ctypes, errno, json, os, platform
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
room = ctypes.create_string_buffer(256)
NEW = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
       "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
# name: numbers on x86_64 and aarch64, arguments
calls = {
    "mount": ((165, 40), b"none", b"/tmp", b"tmpfs", 0, None),
    "bind": ((165, 40), b"/", b"/tmp", None, 4096, None),
    "umount": ((166, 39), b"/tmp", 2),
    "pivot_root": ((155, 41), b"/tmp", b"/tmp"),
    "chroot": ((161, 51), b"/tmp"),
    "fsopen": ((430, 430), b"tmpfs", 0),
    "open_tree": ((428, 428), -100, b"/", 1),
    "open_by_handle_at": ((304, 265), -100, room, 0),
    "clone user": ((56, 220), NEW["user"] | 17, None, None, None, None),
    "clone3": ((435, 435), room, 64),
    "keyctl": ((250, 219), 0, -3, 1),
    "add_key": ((248, 217), b"user", b"x", b"y", 1, -3),
    "request_key": ((249, 218), b"user", b"x", None, -3),
    "bpf": ((321, 280), 0, room, 72),
    "perf_event_open": ((298, 241), room, 0, -1, -1, 0),
    "userfaultfd": ((323, 282), 1),
    "io_uring_setup": ((425, 425), 4, room),
    "init_module": ((175, 105), room, 0, b""),
    "kexec_load": ((246, 104), 0, 0, None, 0),
    "reboot": ((169, 142), 0xfee1dead, 672274793, 0, None),
    "clock_settime": ((227, 112), 0, room),
    "settimeofday": ((164, 170), room, None),
    "syslog": ((103, 116), 3, room, 10),
    "sethostname": ((170, 161), b"x", 1),
    "swapon": ((167, 224), b"/x", 0),
    **{"unshare " + name: ((272, 97), flag) for name, flag in NEW.items()},
}
def setns():
    for name in os.listdir("/proc/self/ns"):
        fd = os.open("/proc/self/ns/" + name, os.O_RDONLY)
        if libc.setns(fd, 0) == 0: return 0
    return -1
def succeeds(call):
    # In a process of its own: what one call gains is not there for the next.
    child = os.fork()
    if child == 0:
        ctypes.set_errno(0)
        os._exit(0 if call() >= 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
allowed = [name for name, (numbers, *args) in calls.items()
           if succeeds(lambda: libc.syscall(ctypes.c_long(numbers[column]), *args))]
print(json.dumps(allowed + ["setns"] * succeeds(setns)))
"""
OF_GVISOR = {
    "unshare user", "unshare mount", "unshare cgroup", "clone user", "io_uring_setup", "syslog",
    "clone3", "keyctl",
}  # fmt: skip
"""A user namespace of gVisor's kernel, its own (restricted) rings and its own joke of a log; in
newer releases also threads by clone3, and key rings of its own."""


async def test_calls_that_reach_into_the_kernel_are_denied(warden: WardenClient) -> None:
    assert await ask_python(warden, CALLS) == []


async def test_a_default_profile_lets_little_more_through(warden: WardenClient) -> None:
    """That of containerd, over kernels and versions."""
    assert set(await ask_python(warden, CALLS)) <= {"io_uring_setup"}
    assert set(await ask_python(warden, SOCKETS)) <= {"vsock"}


async def test_gvisor_answers_a_few_calls_in_its_own_kernel(warden: WardenClient) -> None:
    assert set(await ask_python(warden, CALLS)) <= OF_GVISOR
    version = (await warden.run("cat /proc/version")).output
    assert os.uname().release not in version


async def test_tools_for_more_power_fail(warden: WardenClient) -> None:
    for command in (
        "mount -t tmpfs none /tmp",
        "unshare --user --map-root-user --mount mount -t tmpfs none /workspace",
        "unshare --user --map-root-user sh -c 'echo x > /proc/sys/kernel/hostname'",
        "nsenter --target 1 --mount true",
    ):
        assert (await warden.run(command)).exit_code != 0, command


WRITE_SETTINGS = """
import json, os
wrote = []
def attempt(path):
    try:
        with open(path, "rb") as file: value = file.read(4096)
        fd = os.open(path, os.O_WRONLY)
        try: os.write(fd, value)
        finally: os.close(fd)
        wrote.append(path)
    except OSError: pass
for folder, _, names in os.walk("/proc/sys"):
    for name in names: attempt(folder + "/" + name)
for folder, _, names in os.walk("/sys/fs/cgroup"):
    for name in names: attempt(folder + "/" + name)
for path in ("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/power/state",
             "/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/proc/timer_stats"):
    attempt(path)
print(json.dumps(wrote))
"""


async def test_settings_of_the_kernel_cannot_be_written(warden: WardenClient) -> None:
    assert await ask_python(warden, WRITE_SETTINGS) == []


async def test_what_is_of_the_host_is_not_there(
    warden: WardenClient, tmp_path: Path, state_dir: Path
) -> None:
    (tmp_path / "secret").write_text("of the host")
    engine = os.environ.get("DOCKER_HOST", "").removeprefix("unix://")
    places = [str(tmp_path / "secret"), str(state_dir), str(Path(__file__)), engine or "/none",
              "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
              "/root/.ssh", "/root/.cache", "/home/root"]  # fmt: skip
    found = await ask_python(
        warden, f"import json, os\nprint(json.dumps([p for p in {places} if os.path.exists(p)]))"
    )
    assert found == []
    sockets = await warden.run("find /run /var /tmp /workspace /home -type s 2>/dev/null")
    assert sockets.output == ""


POWER = """
import ctypes, json, os, shutil, subprocess
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
caps = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")}
shutil.copy("/usr/bin/id", "/workspace/id")
os.chmod("/workspace/id", 0o6755)
made = subprocess.run(["/workspace/id", "-ru"], capture_output=True, text=True).stdout
powerful = []
find = ["find", "/usr", "-type", "f", "-perm", "/6000"]
for path in subprocess.run(find, capture_output=True, text=True).stdout.splitlines():
    if not os.statvfs(path).f_flag & os.ST_NOSUID: powerful.append(path)
print(json.dumps([caps, ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), made, powerful,
                  os.getresuid() + os.getresgid(), os.getgroups()]))
"""


async def test_there_is_no_power_to_gain(warden: WardenClient) -> None:
    caps, no_new_privileges, made, powerful, ids, groups = await ask_python(warden, POWER)
    assert set(caps.values()) == {0}
    assert no_new_privileges == 1
    assert made == "1000\n"
    assert powerful == []
    assert set(ids) | set(groups) == {1000}


DEVICES = """
import json, os, stat
made, opened = [], []
for name, kind, major, minor in (
    ("mem", stat.S_IFCHR, 1, 1), ("kmsg", stat.S_IFCHR, 1, 11), ("loop0", stat.S_IFBLK, 7, 0),
    ("vda", stat.S_IFBLK, 254, 0), ("sda", stat.S_IFBLK, 8, 0), ("kvm", stat.S_IFCHR, 10, 232),
):
    for place in ("/workspace/", "/tmp/", "/dev/shm/", "/home/sandboxuser/"):
        try: os.mknod(place + name, kind | 0o666, os.makedev(major, minor))
        except OSError: continue
        made.append(place + name)
        try: os.close(os.open(place + name, os.O_RDONLY))
        except OSError: continue
        opened.append(place + name)
print(json.dumps([made, opened]))
"""


async def test_devices_cannot_be_made(warden: WardenClient) -> None:
    assert await ask_python(warden, DEVICES) == [[], []]


async def test_devices_made_on_gvisor_lead_nowhere(warden: WardenClient) -> None:
    _, opened = await ask_python(warden, DEVICES)
    assert opened == []


SOCKETS = """
import json, socket
wanted = {"raw": (2, 3, 1), "raw any": (2, 3, 255), "raw v6": (10, 3, 58), "packet": (17, 3, 0x300),
          "packet dgram": (17, 2, 0x300), "vsock": (40, 1, 0), "alg": (38, 5, 0),
          "bluetooth": (31, 3, 1), "rds": (21, 5, 0), "can": (29, 3, 1), "tipc": (30, 1, 0)}
opened = []
for name, kind in wanted.items():
    try: socket.socket(*kind).close()
    except OSError: continue
    opened.append(name)
print(json.dumps(opened))
"""


async def test_sockets_of_odd_kinds_cannot_be_opened(warden: WardenClient) -> None:
    assert await ask_python(warden, SOCKETS) == []


MASKED = """
import json, os
def shows(path):
    try:
        if os.path.isdir(path): return bool(os.listdir(path))
        with open(path, "rb") as file: return bool(file.read(1))
    except OSError: return False
print(json.dumps([path for path in (
    "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug",
    "/proc/acpi", "/proc/scsi", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/security",
    "/sys/devices/virtual/powercap", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/kvm",
    "/dev/vda", "/dev/loop0", "/dev/loop-control", "/dev/fuse", "/dev/net/tun",
) if shows(path)]))
"""


TELLS = """
import json, os
def tells(path):
    try:
        if os.path.isdir(path): return " ".join(os.listdir(path))
        with open(path, errors="replace") as file: return file.read()
    except OSError: return ""
found = {name: tells("/proc/" + name) for name in NAMES}
print(json.dumps({name: text for name, text in found.items() if text}))
"""


async def test_windows_into_the_machine_are_closed(warden: WardenClient) -> None:
    assert await ask_python(warden, MASKED) == []


async def test_the_machine_is_not_described(warden: WardenClient, runtime_name: str) -> None:
    """How it was started, its disks, modules, interrupts: gVisor tells of a machine it makes up."""
    names = sorted({"cmdline", "version"} if runtime_name == "gvisor" else
                   {*hidden.PROC_FILES, *hidden.PROC_FOLDERS})  # fmt: skip
    found = await ask_python(warden, TELLS.replace("NAMES", repr(names)))
    for name in ("cmdline", "diskstats", "partitions"):
        told, here = found.get(name, ""), Path("/proc", name).read_text()
        assert not told or told != here
    assert runtime_name == "gvisor" or found == {}
    assert (await warden.run("free && nproc && uptime && mount >/dev/null")).exit_code == 0


WRITABLE = """
import json, os
PLACES = ("/workspace", "/tmp", "/dev/shm", "/home/sandboxuser")
folders = {line.split()[1] for line in open("/proc/mounts")}
for folder, names, _ in os.walk("/"):
    folders.add(folder)
    if folder.count("/") >= 3 or folder.startswith(("/proc", "/sys")): names.clear()
wrote = []
for folder in folders:
    path = os.path.join(folder, ".probe")
    if not path.startswith(PLACES):
        try: os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        except OSError: continue
        os.unlink(path)
        wrote.append(folder)
print(json.dumps(sorted(wrote)))
"""


async def test_nothing_can_be_written_outside_of_the_writable_places(warden: WardenClient) -> None:
    assert await ask_python(warden, WRITABLE) == []


async def test_files_of_the_system_stay_as_they_are(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    for path in ("/etc/passwd", "/usr/bin/env", "/usr/lib/x", "/etc/ld.so.preload"):
        with subtests.test(path):
            result = await warden.run(
                f"echo x >> {path}; rm -f {path}; ln -sf /tmp/x {path}; chmod 777 {path}"
            )
            assert result.exit_code != 0
            assert (await warden.run(f"[ ! -L {path} ]")).exit_code == 0
