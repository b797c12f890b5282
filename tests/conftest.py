"""What holds for every test: nothing is left behind, and what was not tested is said aloud."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

GRACE_S = 10.0
"""Boxes end asynchronously: how long after the last test their traces may still be there."""


BEFORE = pytest.StashKey[list[str]]()
LEFT = pytest.StashKey[list[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # Tests may run in several processes.
        session.config.stash[BEFORE] = sorted(traces())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if boxes, mounts, processes or files of ours outlive it."""
    if BEFORE not in session.config.stash:
        return
    before: list[str] = session.config.stash[BEFORE]
    deadline = time.monotonic() + GRACE_S
    while (left := traces().difference(before)) and time.monotonic() < deadline:
        time.sleep(0.2)
    session.config.stash[LEFT] = sorted(left)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.ensure_newline()
    if left := terminalreporter.config.stash.get(LEFT, []):
        why = "by these tests, or by something else that runs boxes on this machine"
        terminalreporter.section(f"{len(left)} left behind ({why})", red=True, bold=True)
        for trace in left:
            terminalreporter.write_line(f"  {trace}")
    if missing := os.environ.get("SANDBOX_TEST_MISSING"):
        terminalreporter.write_line(f"NOT TESTED HERE: {missing}", red=True, bold=True)


def traces() -> set[str]:
    """Every trace that a box can leave on this machine, one line each."""
    return {
        *docker_objects(),
        *loop_devices(),
        *mounts(),
        *processes(),
        *cgroups(),
        *temporary_folders(),
    }


def docker(*args: str) -> list[str]:
    result = subprocess.run(
        ["docker", *args], capture_output=True, text=True, timeout=30, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"docker {' '.join(args)}: {result.stderr.strip()}")
    return result.stdout.splitlines()


def has_docker() -> bool:
    return "docker" in os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",")


def docker_objects() -> Iterator[str]:
    if not has_docker():
        return
    containers = ("ps", "--all", "--no-trunc", "--format", "{{json .}}")
    volumes = ("volume", "ls", "--format", "{{json .}}")
    for kind, command in (("container", containers), ("volume", volumes)):
        for line in docker(*command):
            row = json.loads(line)
            # Docker's own filter matches one key; ours are `sandbox` and `sandbox.…`.
            if any(label.startswith("sandbox") for label in row["Labels"].split(",")):
                yield f"{kind} {row.get('Names') or row.get('Name')} ({row['Labels']})"


def loop_devices() -> Iterator[str]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            yield f"loop device {backing.parts[3]} on {backing.read_text().strip()}"
        except OSError:
            continue  # detached meanwhile


def mounts() -> Iterator[str]:
    engine = tuple(engine_folders())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if "sandbox" in place and not place.startswith(engine):
            yield f"mount {place}"


def engine_folders() -> Iterator[str]:
    """Where the engine itself mounts things, which are not ours to judge."""
    if not has_docker():
        return
    yield from (f"{folder}/" for folder in docker("info", "--format", "{{.DockerRootDir}}"))
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        yield f"{Path(host.removeprefix('unix://')).parent}/exec/"


def processes() -> Iterator[str]:
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if any(name in words for name in ("warden.pyz", "sandbox/warden", "bwrap")):
            yield f"process {cmdline.parts[2]}: {words[:160].strip()}"


def cgroups() -> Iterator[str]:
    for folder, subfolders, _ in os.walk("/sys/fs/cgroup"):
        yield from (f"cgroup {folder}/{name}" for name in subfolders if name.startswith("sandbox"))


def temporary_folders() -> Iterator[str]:
    for path in Path(tempfile.gettempdir()).glob("sandbox-*"):
        if path.is_dir():
            yield f"folder {path}"
