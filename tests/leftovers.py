"""What a run of the tests has left behind on this machine.

Judged by what this run made, as others run servers on the same machine: containers, volumes and
pods by their owner, everything else by the folder that the run keeps its files in. Control groups
have the state folder of their server in their names, loop devices stand on a file in one.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox_server.runtime.bubblewrap.cgroups import prefix_of
from tests.run import RUN, VARIABLE

_END_S = 20.0


class Trace(NamedTuple):
    """Something of this run that is still there."""

    kind: str
    what: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.what} {self.about}".rstrip()


class Leftovers:
    """Traces of this run. `folder`: where all of its state folders are."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"

    def end(self) -> list[Trace]:
        """End what is left: a run that was interrupted had no time to. Returns what was ended."""
        ended: dict[Trace, None] = {}
        deadline = time.monotonic() + _END_S
        while (left := self.found()) and time.monotonic() < deadline:
            for trace in sorted(left, key=lambda trace: [*_ENDS].index(trace.kind)):
                ended.setdefault(trace)
                with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
                    _ENDS[trace.kind](trace.what)
            time.sleep(0.2)
        return [*ended]

    def found(self) -> set[Trace]:
        return {
            *self._docker_objects(),
            *_pods(),
            *self._mounts(),
            *self._processes(),
            *_control_groups(self._folder),
            *_loop_devices(self._folder),
            *_temporary(),
        }

    def _docker_objects(self) -> Iterator[Trace]:
        if not has_docker():
            return
        containers = ("ps", "--all", "--no-trunc", "--format", "{{json .}}")
        volumes = ("volume", "ls", "--format", "{{json .}}")
        for kind, command in (("container", containers), ("volume", volumes)):
            for line in docker(*command):
                row = json.loads(line)
                if RUN in row["Labels"]:
                    yield Trace(kind, row.get("Names") or row["Name"], f"({row['Labels']})")

    def _mounts(self) -> Iterator[Trace]:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            place = line.split()[4]
            if place.startswith(self._folder):
                yield Trace("mount", place)

    def _processes(self) -> Iterator[Trace]:
        """Those that were given the run's id or folder, and all below them."""
        parents = dict(_parents())
        marks = (f"{VARIABLE}={RUN}\0".encode(), self._folder.encode())
        ours = {pid for pid in parents if any(mark in _read(pid, "environ") for mark in marks)}
        spared = {os.getpid(), *_ancestors(os.getpid(), parents)}
        for pid in parents.keys() - spared:
            if ours & {pid, *_ancestors(pid, parents)} - spared:
                words = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
                yield Trace("process", str(pid), words[:300].strip())


def _pods() -> Iterator[Trace]:
    """Pods of this run, by their owner or namespace."""
    if not (kubeconfig := os.environ.get("SANDBOX_TEST_CLUSTER")):
        return
    command = ["kubectl", "--kubeconfig", kubeconfig, "get", "pods", "-l", "sandbox=1"]
    result = subprocess.run(
        [*command, "-o", "json", "--all-namespaces"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise RuntimeError(f"kubectl get pods: {result.stderr.strip()}")
    for pod in json.loads(result.stdout)["items"]:
        about = pod["metadata"]
        notes = about.get("annotations", {})
        if RUN in notes.get("sandbox/owner", "") or RUN in about["namespace"]:
            yield Trace("pod", f"{about['namespace']}/{about['name']}", f"({notes})")


def has_docker() -> bool:
    return "docker" in os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",")


def docker(*args: str) -> list[str]:
    result = subprocess.run(
        ["docker", *args], capture_output=True, text=True, timeout=30, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"docker {' '.join(args)}: {result.stderr.strip()}")
    return result.stdout.splitlines()


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _read(int(folder.name), "stat").rpartition(b")")[2].split()
        if fields and fields[0] != b"Z":
            yield int(folder.name), int(fields[1])


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # Ended meanwhile, or somebody else's.
        return b""


def _control_groups(folder: str) -> Iterator[Trace]:
    """Those of servers whose state folder is below this one."""
    found = [Path(at, name) for at, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    if found := [group for group in found if group.name.startswith("sandbox-")]:
        ours = tuple(
            f"{prefix_of(Path(at))}-" for at, names, _ in os.walk(folder) if "boxes" in names
        )
        yield from (
            Trace("control group", str(group)) for group in found if group.name.startswith(ours)
        )


_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO_BYTES = 232


def _loop_devices(folder: str) -> Iterator[Trace]:
    """Those on a file below this folder, or on a file of a disk that is one of those."""
    ours: set[int] = set()
    """Numbers of devices."""
    others: dict[Path, str] = {}
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = backing.read_text().strip()
            number = os.stat(f"/dev/{backing.parts[3]}").st_rdev
        except OSError:
            continue  # Detached meanwhile.
        if text.startswith(folder):
            ours.add(number)
            yield Trace("loop device", backing.parts[3], f"on {text}")
        else:
            others[Path("/dev", backing.parts[3])] = text
    for device, text in others.items():
        if _device_below(device) in ours:
            yield Trace("loop device", device.name, f"on {text}")


def _device_below(loop_device: Path) -> int | None:
    """The device that the file behind a loop device is on; None if it was detached meanwhile."""
    try:
        with loop_device.open("rb") as file:
            info = fcntl.ioctl(file, _LOOP_GET_STATUS64, bytes(_LOOP_INFO_BYTES))
    except OSError:
        return None
    (number,) = struct.unpack_from("=Q", info)
    return os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00)


def _temporary() -> Iterator[Trace]:
    for path in Path(tempfile.gettempdir()).glob("sandbox-*"):
        yield Trace("temporary", str(path))


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, timeout=30, check=True)


def _delete_pod(what: str) -> None:
    namespace, name = what.split("/")
    kubeconfig = os.environ["SANDBOX_TEST_CLUSTER"]
    command = ("kubectl", "--kubeconfig", kubeconfig, "--namespace", namespace, "delete", "pod")
    _run(*command, name, "--wait=false", "--grace-period=0")


_ENDS: dict[str, Callable[[str], object]] = {
    "process": lambda pid: os.kill(int(pid), signal.SIGKILL),
    "container": lambda name: _run("docker", "rm", "--force", "--volumes", name),
    "volume": lambda name: _run("docker", "volume", "rm", "--force", name),
    "pod": _delete_pod,
    "mount": lambda place: _run("umount", "--lazy", place),
    "loop device": lambda name: _run("losetup", "--detach", f"/dev/{name}"),
    "control group": os.rmdir,
    "temporary": lambda path: shutil.rmtree(path, ignore_errors=True),
}
"""How each kind is ended, in this order."""
