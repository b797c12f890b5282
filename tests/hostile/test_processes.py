"""Processes of a box cannot end, read or clog the one that serves them: docs/security.md, 11 to 19.

In tests/contract: background children (13), daemons and ignored signals at a timeout (14, 15),
empty stdin (16) and partial output (17) in test_commands.py; every way to exit (19) in
test_state.py; killing and stopping everything that can be (11) in test_recovery.py.
"""

import asyncio

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.warden.client import WardenClient

from .conftest import SESSION_S, answers, ask_python, run_python


async def test_no_signal_reaches_the_warden(warden: WardenClient) -> None:
    boot = (await warden.state()).boot
    await warden.run("kept=1; for n in $(seq 64); do kill -$n 1; done 2>/dev/null")
    await warden.run("for _ in $(seq 20); do kill -9 1; kill -STOP 1; done")
    assert (await warden.run("echo $kept")).output == "1\n"
    assert (await warden.state()).boot == boot


async def test_killing_the_warden_ends_its_gvisor_box_alone(
    warden: WardenClient, neighbour: WardenClient
) -> None:
    with pytest.raises(errors.SessionLost):
        async with asyncio.timeout(SESSION_S):
            await warden.run("kill -9 1; sleep 5")
    await answers(neighbour, 5)


async def test_a_command_after_everything_was_killed_runs_once(warden: WardenClient) -> None:
    """Shells that were started ahead may be dying when they get their call."""
    for n in range(20):
        await warden.run("kill -9 -1")
        assert (await warden.run(f"echo {n} >> /tmp/n; wc -l < /tmp/n")).stdout == f"{n + 1}\n"


TRACE = """
import ctypes, errno, json, platform
libc = ctypes.CDLL(None, use_errno=True)
def denied(number, *args):
    if libc.syscall(number, *args) >= 0: return False
    return errno.errorcode[ctypes.get_errno()]
ptrace, readv = {"x86_64": (101, 310), "aarch64": (117, 270)}[platform.machine()]
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
mine = ctypes.create_string_buffer(16)
local, remote = Vector(ctypes.addressof(mine), 16), Vector(0x400000, 16)
print(json.dumps({
    "attach": denied(ptrace, 16, 1, None, None),
    "seize": denied(ptrace, 0x4206, 1, None, None),
    "readv": denied(readv, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
}))
"""
READ = """
import errno, json, os
def attempt(call, path):
    try: call(path)
    except OSError as exc: return errno.errorcode[exc.errno]
    return False
def read(path):
    with open(path, "rb") as file:
        if not file.read(1): raise PermissionError(errno.EACCES, "empty")
def write(path): os.open(path, os.O_WRONLY)
def fds(path):
    for name in os.listdir(path): os.readlink(path + "/" + name)
print(json.dumps({
    "mem": attempt(read, "/proc/1/mem"), "write mem": attempt(write, "/proc/1/mem"),
    "cwd": attempt(os.readlink, "/proc/1/cwd"), "root": attempt(os.listdir, "/proc/1/root/"),
    "exe": attempt(os.readlink, "/proc/1/exe"), "oom": attempt(write, "/proc/1/oom_score_adj"),
    "environ": attempt(read, "/proc/1/environ"), "maps": attempt(read, "/proc/1/maps"),
    "fd": attempt(fds, "/proc/1/fd"), "fd 1": attempt(write, "/proc/1/fd/1"),
    "auxv": attempt(read, "/proc/1/auxv"),
}))
"""
OF_GVISOR = {"environ", "maps", "fd", "fd 1", "auxv"}


async def test_the_warden_cannot_be_traced(warden: WardenClient) -> None:
    assert False not in (await ask_python(warden, TRACE)).values()


async def reachable(warden: WardenClient) -> set[str]:
    """Parts of PID 1 that a process of the box gets hold of."""
    denied = await ask_python(warden, READ)
    return {part for part, error in denied.items() if not error}


async def test_descriptors_of_the_warden_are_out_of_reach(warden: WardenClient) -> None:
    assert await reachable(warden) == set()


async def test_memory_of_the_gvisor_warden_is_out_of_reach(warden: WardenClient) -> None:
    assert await reachable(warden) <= OF_GVISOR


SPEAK = r"""
import array, os, select, socket, struct
body = b'{"version": 1, "epoch": 99}'
hello = struct.pack("!IBI", len(body), 1, 1) + body
names = {line.split()[-1][1:] for line in open("/proc/net/unix") if "@" in line}
for name in names | {"sandbox-warden"}:
    for relayed in (False, True):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(2)
        fds = [*os.pipe(), *os.pipe()]
        try:
            peer.connect("\0" + name)
            challenge = peer.recv(16) if select.select([peer], [], [], 0.2)[0] else b"\0"
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fds[0], fds[3]]))]
            peer.sendmsg([challenge if relayed else hello], rights if relayed else [])
            os.write(fds[1], hello)
            os.close(fds.pop())
            assert os.read(fds[2], 1) == b"" if relayed else peer.recv(1) == b"", name
        except OSError: pass
        for fd in fds: os.close(fd)
"""


async def test_a_box_cannot_speak_to_its_own_warden(warden: WardenClient) -> None:
    """Every abstract socket there is, as a stream and as a relay, with the hello of an owner."""
    result = await run_python(warden, SPEAK)
    assert result.output == ""
    assert (await warden.state()).epoch == 1


ZOMBIES = {
    "children": """
import os
for n in range(200):
    try: child = os.fork() or os._exit(0)
    except OSError: break
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(n)
""",
    "orphans": """
import os
for n in range(200):
    try: child = os.fork()
    except OSError: break
    if child == 0:
        try: os.fork()
        finally: os._exit(0)
    os.wait()
print(n)
""",
}


@pytest.mark.parametrize("kind", ZOMBIES)
async def test_zombies_are_reaped(warden: WardenClient, kind: str) -> None:
    """Children of a process that never waits, and of those that are gone already. One at a time:
    two hundred that live are more than the memory of a box on gVisor."""
    made = await run_python(warden, ZOMBIES[kind])
    assert int(made.stdout) > 30, made.output
    assert await zombies(warden) == 0


async def zombies(warden: WardenClient) -> int:
    """How many are left after a moment."""
    result = await warden.run(
        "for i in $(seq 20); do n=$(cat /proc/[0-9]*/stat | grep -c ') Z '); "
        "[ $n = 0 ] && break; sleep 0.2; done; echo $n"
    )
    return int(result.stdout)
