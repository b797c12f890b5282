"""What the doctor makes of versions, and of what was found inside of a box."""

from datetime import date
from typing import Any

import pytest

from sandbox_server.doctor.confinement import Promised, judge, judge_memory
from sandbox_server.doctor.findings import State
from sandbox_server.doctor.machine import _platform
from sandbox_server.doctor.versions import (
    Component,
    examine_bubblewrap,
    examine_gvisor,
    examine_version,
)
from sandbox_server.runtime.base import Limits

OF_2025 = {"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}
ALL = {"CVE-2024-21626", *OF_2025}


def escapes(version: str, commit: str = "", system: str = "") -> tuple[set[State], set[str]]:
    part = Component(name="runc", version=version, commit=commit, system=system)
    found = list(examine_version(part))
    words = " ".join(finding.told for finding in found)
    assert all(finding.fix for finding in found if finding.state != State.OK)
    return {finding.state for finding in found}, {cve for cve in ALL if cve in words}


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("1.0.3", ALL),
        ("1.1.11", ALL),
        ("1.1.12", OF_2025),
        ("1.1.15", OF_2025),
        ("1.2.7", OF_2025),
        ("1.2.8", set()),
        ("1.2.9", set()),
        ("1.3.0", OF_2025),
        ("1.3.2", OF_2025),
        ("1.3.3", set()),
        ("1.4.0-rc.1", OF_2025),
        ("1.4.0-rc.3", set()),
        ("1.4.0", set()),
        ("1.5.0-rc.1", set()),
        ("2.0.0", set()),
    ],
)
def test_versions_of_runc(version: str, named: set[str]) -> None:
    expected = State.FAILED if named else State.OK
    assert escapes(version) == ({expected}, named)
    assert escapes(version, f"v{version}-0-g59923ef", "Ubuntu 24.04 LTS") == ({expected}, named)


@pytest.mark.parametrize(
    ("version", "commit", "system"),
    [
        ("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", "Debian GNU/Linux 12"),
        ("1.1.12-0ubuntu2~22.04.1", "", "Ubuntu 22.04"),
        ("1.1.12-3.el9", "", ""),
        ("1.2.5", "", "Red Hat Enterprise Linux 9.6"),
    ],
)
def test_a_package_of_a_distribution_is_not_judged_by_its_number(
    version: str, commit: str, system: str
) -> None:
    states, named = escapes(version, commit, system)
    assert states == {State.UNKNOWN}
    assert named >= OF_2025


def test_a_new_package_is_fine_and_nonsense_is_unknown() -> None:
    assert escapes("1.3.3+ds1", "1.3.3+ds1-2") == ({State.OK}, set())
    assert escapes("")[0] == escapes("unknown")[0] == {State.UNKNOWN}


def test_on_gvisor_runc_only_prepares_the_image() -> None:
    part = Component(name="runc", version="1.1.0")
    assert {each.state for each in examine_version(part, weak=State.WARNING)} == {State.WARNING}


def test_other_versions() -> None:
    today = date(2026, 1, 1)
    assert examine_gvisor("runsc version release-20251101.0", today).state == State.OK
    assert examine_gvisor("runsc version 0.0~20221219.0", today).state == State.WARNING
    assert examine_gvisor("", today).state == State.UNKNOWN
    assert examine_bubblewrap("bubblewrap 0.8.0", setuid=False).state == State.OK
    assert examine_bubblewrap("bubblewrap 0.8.0", setuid=True).state == State.WARNING
    assert examine_bubblewrap("bubblewrap 0.4.0", setuid=True).state == State.FAILED


GOOD: dict[str, Any] = {
    "uid": [1000] * 3, "gid": [1000] * 3, "groups": [1000], "uid_map": ["1000", "190", "1"],
    "status": {"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "Seccomp": "2"},
    "no_new_privs": 1, "seccomp": 2, "namespaces": {"mount": "a", "net": "b", "user": "c"},
    "processes": [1, 7], "calls": [], "writable": [], "settings": [], "of_the_host": [],
    "devices": [], "mounts": 0, "setuid": [{"path": "/usr/bin/su", "nosuid": False}],
    "interfaces": ["lo"], "metadata": False, "file_size": False, "open_files": 4096,
    "cpus": 0.52, "pids": 250,
    "places": {"/workspace": {"bytes": 1 << 30, "files": 9, "nosuid": True, "nodev": True}},
}  # fmt: skip
HOST = {"mount": "h", "net": "h", "user": "h", "ipc": "h", "pid": "h", "uts": "h"}
PROMISED = Promised(runtime="bubblewrap", host_namespaces=HOST)


def bad(facts: dict[str, Any], promised: Promised = PROMISED) -> dict[str, State]:
    found = judge(facts, promised)
    assert all(finding.fix for finding in found if finding.state != State.OK)
    return {finding.name: finding.state for finding in found if finding.state != State.OK}


def test_a_box_as_it_should_be() -> None:
    assert bad(GOOD) == {}
    assert judge_memory(500 << 20, PROMISED).state == State.OK
    assert judge_memory(None, PROMISED).state == State.OK
    assert judge_memory(700 << 20, PROMISED).state == State.FAILED


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"uid": [0, 0, 0]}, "user"),
        ({"groups": [1000, 27]}, "user"),
        ({"status": {"CapBnd": "00000000a80425fb"}}, "capabilities"),
        ({"status": {}}, "capabilities"),
        ({"no_new_privs": 0}, "no new privileges"),
        ({"no_new_privs": 0}, "setuid programs"),
        ({"seccomp": 0, "status": {"CapEff": "0"}}, "seccomp"),
        ({"calls": ["mount"]}, "system calls"),
        ({"settings": ["/proc/sysrq-trigger"]}, "kernel settings"),
        ({"namespaces": {**GOOD["namespaces"], "net": "h"}}, "namespaces"),
        ({"namespaces": {**GOOD["namespaces"], "user": "h"}}, "user namespace"),
        ({"processes": list(range(1, 300))}, "processes seen"),
        ({"writable": ["/etc"]}, "writable paths"),
        ({"of_the_host": ["/var/run/docker.sock"]}, "host files"),
        ({"devices": ["sda"]}, "devices"),
        ({"interfaces": ["eth0", "lo"]}, "network"),
        ({"pids": 320}, "process limit"),
        ({"cpus": 2.0}, "cpu limit"),
        ({"places": {"/workspace": {"bytes": 1 << 40, "nosuid": True}}}, "disk limit"),
        ({"open_files": 1 << 20}, "open files"),
    ],
)
def test_a_hole(change: dict[str, Any], name: str) -> None:
    assert bad({**GOOD, **change})[name] == State.FAILED


def test_what_the_server_admits_is_no_surprise() -> None:
    lacking = {"pids": "not counted", "cpu": "no group", "disk": "no disk", "syscalls": "no filter"}
    admitted = Promised(runtime="docker", lacking=lacking, limits=Limits())
    change = {"pids": None, "cpus": 0.1, "seccomp": 0, "status": {"CapEff": "0"}}
    found = bad({**GOOD, **change}, admitted)
    assert found == dict.fromkeys(("process limit", "cpu limit", "seccomp"), State.WARNING)


def test_a_network_that_others_have_to_close() -> None:
    pods = Promised(runtime="kubernetes", lacking={"network": "up to the cluster"})
    assert bad({**GOOD, "interfaces": ["eth0", "lo"]}, pods) == {"network": State.WARNING}


def test_a_network_that_was_asked_for() -> None:
    bridge = Promised(runtime="docker", network="bridge")
    facts = {**GOOD, "interfaces": ["eth0", "lo"]}
    assert bad(facts, bridge) == {}
    assert bad({**facts, "metadata": True}, bridge) == {"network": State.FAILED}


def test_calls_that_gvisor_answers_itself() -> None:
    gvisor = Promised(runtime="docker", gvisor=True)
    facts = {**GOOD, "seccomp": 0, "calls": ["unshare user", "syslog"]}
    assert bad(facts, gvisor) == {}
    assert bad({**facts, "calls": ["mount"]}, gvisor) == {"system calls": State.FAILED}


def test_the_platform_of_gvisor_is_told() -> None:
    assert _platform(["--network=none", "--platform=systrap"]) == "platform systrap"
    assert _platform(["-platform=ptrace"]).startswith("platform ptrace (systrap is faster")
    assert _platform(["--network=none"]) == "its default platform"
