"""Control groups of boxes, on folders that look like the kernel's."""

from pathlib import Path

import pytest

from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.bubblewrap import cgroups
from sandbox_server.runtime.bubblewrap.cgroups import Groups

LIMITS = Limits(memory_bytes=100 << 20, cpus=0.5, pids=64)


def test_version_1_has_a_folder_for_each_controller() -> None:
    parents = {name: Path("/g") / name for name in ("memory", "pids", "cpu", "cpuacct")}
    plan = Groups(1, parents).plan("b1", LIMITS)
    assert plan.folders == [f"/g/{name}/sandbox-b1" for name in parents]
    assert ("/g/memory/sandbox-b1/memory.limit_in_bytes", str(100 << 20), True) in plan.writes
    assert ("/g/cpu/sandbox-b1/cpu.cfs_quota_us", "50000", True) in plan.writes
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
    assert ("/g/app.slice/sandbox-b1/cpu.max", "50000 100000", True) in plan.writes
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


def test_a_machine_without_control_groups_has_none(tmp_path: Path) -> None:
    assert cgroups.find(tmp_path) == Groups(1, {})


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "sandbox-b1").mkdir()
    cgroups.remove([str(tmp_path / "sandbox-b1"), str(tmp_path / "sandbox-b2")])
    assert not list(tmp_path.iterdir())
