"""What a run of the tests has left behind on this machine, one line each.

Judged by what this run made: containers and volumes by their owner, everything else by the folder
the run keeps its files in. What cannot tell who made it (a control group, a loop device) counts
when it is new and nobody uses it: those of a box that lives are in use.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.run import RUN, VARIABLE


class Leftovers:
    """Traces of this run. `folder`: where all of its state folders are."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._before = set(self._unnamed())

    def found(self) -> set[str]:
        return {
            *self._docker_objects(),
            *_pods(),
            *self._mounts(),
            *self._processes(),
            *(trace for trace in self._unnamed() if trace not in self._before),
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

    def _unnamed(self) -> Iterator[str]:
        if has_docker():  # Images being made for boxes: each takes a moment.
            for prefix in ("sandbox-derive-", "sandbox-environment-"):
                making = ("ps", "--all", "--filter", f"name={prefix}", "--format", "{{.Names}}")
                yield from (f"container {name}" for name in docker(*making))
        yield from _empty_cgroups()
        yield from _unused_loop_devices(self._folder)
        for path in Path(tempfile.gettempdir()).glob("sandbox-*"):
            yield f"temporary {path}"


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


def _empty_cgroups() -> Iterator[str]:
    for folder, subfolders, _ in os.walk("/sys/fs/cgroup"):
        for name in subfolders:
            group = Path(folder, name)
            if name.startswith("sandbox") and not _members(group):
                yield f"cgroup {group}"


def _members(group: Path) -> str:
    try:
        return (group / "cgroup.procs").read_text()
    except OSError:
        return "gone meanwhile"


def _unused_loop_devices(folder: str) -> Iterator[str]:
    attached = {}
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            attached[f"/dev/{backing.parts[3]}"] = backing.read_text().strip()
        except OSError:
            continue  # Detached meanwhile.
    if attached:
        for table in Path("/proc").glob("[0-9]*/mounts"):
            try:
                used = {line.split()[0] for line in table.read_text().splitlines()}
            except OSError:
                continue
            for device in used & attached.keys():
                del attached[device]
    for device, backing_file in attached.items():
        if backing_file.endswith("/pool.xfs") and not backing_file.startswith(folder):
            continue  # A server of somebody else's has it open, mounted nowhere.
        yield f"loop device {device} on {backing_file}"
