"""Control groups of boxes, on folders that look like the kernel's."""

from pathlib import Path

import pytest

from sandbox_server.runtime import cpu_limit
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.bubblewrap import cgroups
from sandbox_server.runtime.bubblewrap.cgroups import Groups

LIMITS = Limits(memory_bytes=100 << 20, cpus=0.5, pids=64)


def test_version_1_has_a_folder_for_each_controller() -> None:
    parents = {name: Path("/g") / name for name in ("memory", "pids", "cpu", "cpuacct")}
    plan = Groups(1, parents).plan("b1", LIMITS)
    assert plan.folders == [f"/g/{name}/sandbox-b1" for name in parents]
    assert ("/g/memory/sandbox-b1/memory.limit_in_bytes", str(100 << 20), True) in plan.writes
    assert ("/g/cpu/sandbox-b1/cpu.cfs_quota_us", "150000", True) in plan.writes
    assert ("/g/cpu/sandbox-b1/cpu.cfs_burst_us", "150000", False) in plan.writes
    assert ("/g/pids/sandbox-b1/pids.max", "64", True) in plan.writes
    assert plan.meters["cpu"] == "/g/cpuacct/sandbox-b1/cpuacct.usage"


def test_swap_is_limited_only_where_the_kernel_counts_it() -> None:
    plan = Groups(1, {"memory": Path("/g/memory")}).plan("b1", LIMITS)
    required = {Path(path).name: required for path, _, required in plan.writes}
    assert required == {"memory.limit_in_bytes": True, "memory.memsw.limit_in_bytes": False}


def test_version_2_has_one_folder() -> None:
    parents = dict.fromkeys(("memory", "pids", "cpu"), Path("/g/app.slice"))
    plan = Groups(2, parents).plan("b1", LIMITS)
    assert plan.folders == ["/g/app.slice/sandbox-b1"]
    assert ("/g/app.slice/sandbox-b1/cpu.max", "150000 300000", True) in plan.writes
    assert ("/g/app.slice/sandbox-b1/cpu.max.burst", "150000", False) in plan.writes
    assert plan.meters == {
        "oom": "/g/app.slice/sandbox-b1/memory.events",
        "memory": "/g/app.slice/sandbox-b1/memory.current",
        "cpu": "/g/app.slice/sandbox-b1/cpu.stat",
        "pids": "/g/app.slice/sandbox-b1/pids.current",
    }


def test_without_a_controller_nothing_is_written_for_it() -> None:
    plan = Groups(2, {"pids": Path("/g")}).plan("b1", LIMITS)
    assert [Path(path).name for path, _, _ in plan.writes] == ["pids.max"]
    assert set(plan.meters) == {"pids"}
    assert Groups(2, {}).plan("b1", LIMITS).folders == []


def test_a_delegated_group_of_version_2_is_found_next_to_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    slice_ = tmp_path / "user.slice"
    (slice_ / "own.scope").mkdir(parents=True)
    (slice_ / "cgroup.subtree_control").write_text("memory pids\n")
    monkeypatch.setattr(cgroups, "_own_group", lambda: "/user.slice/own.scope")
    monkeypatch.setattr(cgroups, "_enable", lambda parent, names: None)
    monkeypatch.setattr(cgroups, "_can_enter", lambda parent: parent == slice_)
    assert cgroups.find(tmp_path) == Groups(2, {"memory": slice_, "pids": slice_})


MIXED = """\
33 25 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw
34 33 0:31 / {0}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 33 0:32 / {0}/unified rw - cgroup2 cgroup2 rw
"""
UNIFIED = "35 33 0:32 / {0} rw - cgroup2 cgroup2 rw\n"
NESTED = "35 33 0:32 /host.slice {0} rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounts", "cgroup", "folder", "quota", "burst"),
    [
        (MIXED, "4:cpu,cpuacct:/docker/c0ffee\n0::/", "cpu,cpuacct/docker/c0ffee", "150000", True),
        (MIXED, "4:cpu,cpuacct:/docker/c0ffee\n0::/", "cpu,cpuacct/docker/c0ffee", "-1", False),
        (UNIFIED, "0::/system.slice/docker-c0ffee.scope", "system.slice/docker-c0ffee.scope",
         "150000 300000", True),
        (UNIFIED, "0::/docker/c0ffee", "docker/c0ffee", "max 100000", False),
        (NESTED, "0::/host.slice/docker/c0ffee", "docker/c0ffee", "150000 300000", True),
    ],
)  # fmt: skip
def test_the_burst_of_a_container(
    tmp_path: Path, mounts: str, cgroup: str, folder: str, quota: str, *, burst: bool
) -> None:
    proc, group = tmp_path / "proc", tmp_path / "sys" / folder
    for made in (proc / "self", proc / "7", group):
        made.mkdir(parents=True)
    (proc / "self/mountinfo").write_text(mounts.format(tmp_path / "sys"))
    (proc / "7/cgroup").write_text(cgroup)
    version = 1 if mounts is MIXED else 2
    (group / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")).write_text(quota)
    assert cpu_limit.allow(7, "c0ffee", proc=proc) == ""
    written = group / cpu_limit.FILES[version]
    assert (written.read_text() if burst else written.exists()) == ("150000" if burst else False)
    assert "no control group of container decaf" in cpu_limit.allow(7, "decaf", proc=proc)
    assert "8/cgroup" in cpu_limit.allow(8, "c0ffee", proc=proc)


def test_a_machine_without_control_groups_has_none(tmp_path: Path) -> None:
    assert cgroups.find(tmp_path) == Groups(1, {})


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "sandbox-b1").mkdir()
    cgroups.remove([str(tmp_path / "sandbox-b1"), str(tmp_path / "sandbox-b2")])
    assert not list(tmp_path.iterdir())
