"""A box can use up what it was given, and nothing else (docs/security.md, 1 to 10).

In tests/contract: a full disk during an upload (test_files.py), more output than is kept and lines
of 50 MB (test_commands.py).
"""

import asyncio
import re
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.runtime.kubernetes import PodBox
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from tests.contract.on_kubernetes import KUBECONFIG

from .conftest import (
    MIB,
    NEIGHBOUR_S,
    NOT_APPLICABLE,
    SESSION_S,
    SMALL,
    answers,
    ask_python,
    run_python,
)

BOMB = "bomb() { bomb | bomb & }; bomb 2>/dev/null"
HOG = "hoard = []\nwhile True: hoard.append(bytearray(8 << 20))"
GIB = 1 << 30


async def test_what_does_not_apply_is_said_by_the_runtime_too(
    runtime: Runtime, runtime_name: str
) -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    missing = (await runtime.enforcement()).missing()
    for (name, test), why in NOT_APPLICABLE.items():
        assert f"def {test}(" in tests
        assert not why.instead or f"def {why.instead}(" in tests
        assert name != runtime_name or why.enforcement in missing


# Processes


async def test_a_fork_bomb_is_bounded_and_gone_at_its_timeout(warden: WardenClient) -> None:
    running = asyncio.create_task(warden.run(f"{BOMB}; sleep 30", timeout_s=3))
    counts = []
    while not running.done():
        counts.append((await warden.usage()).pids)
        await asyncio.sleep(0.2)
    assert (await running).timed_out
    assert SMALL.pids // 2 < max(counts) <= SMALL.pids
    assert (await warden.usage()).pids < 16


async def test_a_fork_bomb_in_the_background_leaves_the_session_alone(
    warden: WardenClient,
) -> None:
    assert (await warden.run(f"({BOMB}) & sleep 1; echo begun", timeout_s=10)).exit_code == 0
    for _ in range(5):
        await answers(warden, SESSION_S)


async def test_threads_count_as_processes(warden: WardenClient) -> None:
    result = await run_python(
        warden,
        "import threading, time\n"
        "for n in range(1000):\n"
        "    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()\n",
    )
    assert "can't start new thread" in result.stderr


async def test_a_fork_bomb_without_a_limit_hurts_its_own_box_alone(
    box: WardenBox, warden: WardenClient, neighbour: WardenClient
) -> None:
    running = asyncio.create_task(warden.run(f"{BOMB}; sleep 30", timeout_s=3))
    await asyncio.wait([running], timeout=4)
    await answers(neighbour, NEIGHBOUR_S)
    await box.destroy()
    with pytest.raises(errors.SessionLost):
        async with asyncio.timeout(SESSION_S):
            await running


# Memory


async def test_endless_output_is_cut_and_told_and_costs_the_server_little(
    warden: WardenClient,
) -> None:
    tracemalloc.start()
    try:
        result = await warden.run("yes", timeout_s=3, output_limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.truncated
    assert result.timed_out
    assert result.output_bytes > 4 * MIB
    assert peak < 4 * MIB


async def test_a_memory_hog_is_killed_and_told(warden: WardenClient) -> None:
    await warden.run("kept=1")
    result = await run_python(warden, HOG)
    assert (result.exit_code, result.reason) == (137, "oom")
    shell = await warden.run("x=$(head -c 400000000 /dev/zero | tr '\\0' x)")
    assert (shell.exit_code, shell.reason) == (137, "oom")
    assert (await warden.run("echo $kept")).output == "1\n"


async def test_memory_that_outlives_its_process_leaves_the_session_alone(
    warden: WardenClient,
) -> None:
    """System V segments and files in memory stay when who made them is killed."""
    await warden.run("head -c 1G /dev/zero > /tmp/x; head -c 1G /dev/zero > /dev/shm/x")
    result = await run_python(
        warden,
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.shmat.restype = ctypes.c_void_p\n"
        "for _ in range(40):\n"
        "    segment = libc.shmget(0, ctypes.c_size_t(8 << 20), 0o1600)\n"
        "    ctypes.memset(libc.shmat(segment, None, 0), 1, 8 << 20)\n",
    )
    assert (result.exit_code, result.reason) == (137, "oom")
    for _ in range(3):
        await answers(warden, SESSION_S)


async def test_a_memory_hog_takes_its_gvisor_box_along(
    box: WardenBox, warden: WardenClient
) -> None:
    with pytest.raises(errors.SessionLost):
        async with asyncio.timeout(SESSION_S):
            await run_python(warden, HOG)
    assert not await box.is_alive()


# Disks


async def test_a_large_file_ends_at_the_disk_limit(warden: WardenClient) -> None:
    before = shutil.disk_usage("/var/tmp").free
    result = await warden.run("dd if=/dev/zero of=big bs=1M count=10240; wc -c < big")
    assert "No space left on device" in result.stderr
    assert int(result.stdout) <= SMALL.disk_bytes
    assert before - shutil.disk_usage("/var/tmp").free < GIB
    await warden.run("rm big")
    assert (await warden.run("echo again > file && cat file")).output == "again\n"


async def test_no_file_is_larger_than_the_disk_limit(warden: WardenClient) -> None:
    """Where nothing is refused before: see file_bytes."""
    result = await warden.run("dd if=/dev/zero of=big bs=1M count=10240; wc -c < big; rm big")
    assert "File size limit exceeded" in result.stderr or "too large" in result.stderr
    assert int(result.stdout) <= BoxSpec(owner="", deadman_s=1, limits=SMALL).file_bytes


MANY_FILES = """
import json, os
os.mkdir({place!r} + "/many")
made = 0
try:
    while made < 1_000_000:
        os.close(os.open("%s/many/%d" % ({place!r}, made), os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    assert error.errno == 28, error
print(json.dumps(made))
"""


async def test_empty_files_are_counted(warden: WardenClient) -> None:
    assert await ask_python(warden, MANY_FILES.format(place="/workspace")) <= SMALL.inodes


async def test_empty_files_in_memory_are_counted(warden: WardenClient) -> None:
    for place in ("/tmp", "/dev/shm", "/home/sandboxuser"):
        assert await ask_python(warden, MANY_FILES.format(place=place)) <= SMALL.inodes


async def test_files_in_memory_are_bounded_and_charged_to_the_box(warden: WardenClient) -> None:
    sizes = {
        "/tmp": SMALL.tmp_bytes,
        "/dev/shm": SMALL.shm_bytes,
        "/home/sandboxuser": SMALL.home_bytes,
    }
    before = (await warden.usage()).memory_bytes
    for place, size in sizes.items():
        result = await warden.run(f"head -c 1G /dev/zero > {place}/big; wc -c < {place}/big")
        assert "No space left on device" in result.stderr
        assert int(result.stdout) <= size
    after = (await warden.usage()).memory_bytes
    if before is not None and after is not None:  # gVisor does not tell; its host process is it.
        assert after - before > sum(sizes.values()) // 2


# Everything else that is scarce


async def test_spinners_get_the_cpu_limit_and_no_more(
    runtime_name: str, box: WardenBox, warden: WardenClient
) -> None:
    async def used_s() -> float:
        # gVisor counts what its processes wanted; the host knows what they got.
        on_host = runtime_name.endswith("gvisor")
        return container_cpu_s(box) if on_host else (await warden.usage()).cpu_s

    before, started = await used_s(), time.monotonic()
    spin = "timeout 3 sh -c 'while :; do :; done' &"
    await warden.run(f"{spin * 8} wait", timeout_s=20)
    assert (await used_s() - before) / (time.monotonic() - started) < SMALL.cpus * 1.5


def container_cpu_s(box: WardenBox) -> float:
    """From the control group of a box's container, of version 1 or 2."""
    ident = (
        kubectl("get", f"pod/sandbox-{box.id}", "-o", "jsonpath={.metadata.uid}")
        if isinstance(box, PodBox)
        else inspect(f"sandbox-{box.id}", "{{.Id}}")
    )
    root = Path("/sys/fs/cgroup")
    for usage in root.glob(f"cpu*/**/*{ident}*/cpuacct.usage"):
        return int(usage.read_text()) / 1e9
    (stat,) = root.glob(f"**/*{ident}*/cpu.stat")
    return int(stat.read_text().split()[1]) / 1e6


async def test_open_files_are_counted(warden: WardenClient) -> None:
    opened, error = await ask_python(
        warden,
        "import errno, json, os\n"
        "opened = 0\n"
        "try:\n"
        "    while opened < 1_000_000: os.dup(0); opened += 1\n"
        "except OSError as exc: print(json.dumps([opened, errno.errorcode[exc.errno]]))\n",
    )
    assert (opened < SMALL.open_files, error) == (True, "EMFILE")


TERMINALS = """
import os, time
for _ in range(50):
    if os.fork() == 0:
        try:
            while True: os.openpty()
        except OSError:
            time.sleep(30)
time.sleep(3)
print("full", flush=True)
time.sleep(30)
"""
INOTIFY = """
import ctypes, time
while ctypes.CDLL(None).inotify_init() >= 0: pass
print("full", flush=True)
time.sleep(30)
"""
IN_FLIGHT = """
import array, socket, time
kept = []
try:
    for _ in range(100):
        one, other = socket.socketpair()
        kept += [one, other]
        many = array.array("i", [0] * 250)
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
except OSError:
    pass
print("full", flush=True)
time.sleep(30)
"""
USE_TERMINAL = "python3 -c 'import os; os.openpty()' && echo fine"
USE_INOTIFY = "python3 -c 'import ctypes; exit(ctypes.CDLL(None).inotify_init() < 0)' && echo fine"


@asynccontextmanager
async def exhausted(warden: WardenClient, code: str) -> AsyncIterator[None]:
    """While a program of the box holds all it could get of something."""
    held = warden.stream("python3 -", stdin=code.encode(), command_id="holder", timeout_s=30)
    async for event in held:
        if b"full" in getattr(event, "data", b""):
            break
    try:
        yield
    finally:
        await held.aclose()
        await warden.signal("holder", 9)


async def fine(warden: WardenClient, command: str) -> bool:
    return (await warden.run(command)).output == "fine\n"


@pytest.mark.machine_alone
async def test_terminals_of_a_neighbour_are_its_own(
    warden: WardenClient, neighbour: WardenClient
) -> None:
    async with exhausted(warden, TERMINALS):
        assert await fine(neighbour, USE_TERMINAL)


@pytest.mark.machine_alone
async def test_inotify_of_a_neighbour_is_its_own(
    warden: WardenClient, neighbour: WardenClient
) -> None:
    async with exhausted(warden, INOTIFY):
        assert await fine(neighbour, USE_INOTIFY)


@pytest.mark.machine_alone
async def test_descriptors_in_flight_do_not_stop_a_neighbour(
    warden: WardenClient, neighbour: WardenClient
) -> None:
    """Linux counts descriptors on their way through sockets by user, over all of the machine."""
    async with exhausted(warden, IN_FLIGHT):
        for _ in range(3):
            assert await fine(neighbour, "echo fine")


@pytest.mark.machine_alone
async def test_descriptors_in_flight_do_not_stop_the_session(warden: WardenClient) -> None:
    async with exhausted(warden, IN_FLIGHT):
        for _ in range(3):
            assert await fine(warden, "echo fine")


async def test_nothing_that_a_box_writes_ends_up_in_a_log(
    runtime_name: str, state_dir: Path, box: WardenBox, warden: WardenClient
) -> None:
    before = folder_bytes(state_dir)
    flood = (
        'for fd in 0 1 2; do timeout 1 sh -c "yes > /proc/1/fd/$fd"; done; yes | head -c 50M >&2'
    )
    await warden.run(flood)
    if runtime_name == "bubblewrap":
        assert folder_bytes(state_dir) - before < MIB
    elif runtime_name.startswith("kubernetes"):
        assert len(kubectl("logs", f"sandbox-{box.id}")) < MIB
    else:
        form = "{{.HostConfig.LogConfig.Type}} {{.LogPath}}"
        assert inspect(f"sandbox-{box.id}", form) == "none"


def inspect(container: str, form: str) -> str:
    words = ["docker", "inspect", "--format", form, container]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def kubectl(*words: str) -> str:
    words = ("kubectl", "--kubeconfig", KUBECONFIG, *words)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def folder_bytes(folder: Path) -> int:
    words = ["du", "--summarize", "--block-size=1", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(re.match(r"\d+", done.stdout)[0])  # type: ignore[index]
