"""What a run of the tests has left behind on this machine, one line each.

Judged by what this run made, as others run servers on the same machine: containers, volumes and
pods by their owner, everything else by the folder that the run keeps its files in. Control groups
have the state folder of their server in their names, loop devices stand on a file in one.
"""

import fcntl
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandbox_server.runtime.bubblewrap.cgroups import prefix_of
from tests.run import RUN, VARIABLE


class Leftovers:
    """Traces of this run. `folder`: where all of its state folders are."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"

    def found(self) -> set[str]:
        return {
            *self._docker_objects(),
            *_pods(),
            *self._mounts(),
            *self._processes(),
            *_control_groups(self._folder),
            *_loop_devices(self._folder),
            *(f"temporary {path}" for path in Path(tempfile.gettempdir()).glob("sandbox-*")),
        }

    def _docker_objects(self) -> Iterator[str]:
        if not has_docker():
            return
        containers = ("ps", "--all", "--no-trunc", "--format", "{{json .}}")
        volumes = ("volume", "ls", "--format", "{{json .}}")
        for kind, command in (("container", containers), ("volume", volumes)):
            for line in docker(*command):
                row = json.loads(line)
                if RUN in row["Labels"]:
                    yield f"{kind} {row.get('Names') or row.get('Name')} ({row['Labels']})"

    def _mounts(self) -> Iterator[str]:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            place = line.split()[4]
            if place.startswith(self._folder):
                yield f"mount {place}"

    def _processes(self) -> Iterator[str]:
        """Those that were given the run's id or folder, and all below them."""
        parents = dict(_parents())
        marks = (f"{VARIABLE}={RUN}\0".encode(), self._folder.encode())
        ours = {pid for pid in parents if any(mark in _read(pid, "environ") for mark in marks)}
        spared = {os.getpid(), *_ancestors(os.getpid(), parents)}
        for pid in parents.keys() - spared:
            if ours & {pid, *_ancestors(pid, parents)} - spared:
                words = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
                yield f"process {pid}: {words[:300].strip()}"


def _pods() -> Iterator[str]:
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
            yield f"pod {about['name']} ({notes})"


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


def _control_groups(folder: str) -> Iterator[str]:
    """Those of servers whose state folder is below this one."""
    found = [Path(at, name) for at, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    if found := [group for group in found if group.name.startswith("sandbox-")]:
        ours = tuple(
            f"{prefix_of(Path(at))}-" for at, names, _ in os.walk(folder) if "boxes" in names
        )
        yield from (f"control group {group}" for group in found if group.name.startswith(ours))


_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO_BYTES = 232


def _loop_devices(folder: str) -> Iterator[str]:
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
            yield f"loop device {backing.parts[3]} on {text}"
        else:
            others[Path("/dev", backing.parts[3])] = text
    for device, text in others.items():
        if _device_below(device) in ours:
            yield f"loop device {device.name} on {text}"


def _device_below(loop_device: Path) -> int | None:
    """The device that the file behind a loop device is on; None if it was detached meanwhile."""
    try:
        with loop_device.open("rb") as file:
            info = fcntl.ioctl(file, _LOOP_GET_STATUS64, bytes(_LOOP_INFO_BYTES))
    except OSError:
        return None
    (number,) = struct.unpack_from("=Q", info)
    return os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00)
