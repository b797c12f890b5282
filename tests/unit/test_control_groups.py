"""What control groups of both versions say of a box."""

from pathlib import Path

from sandbox_server.runtime.control_groups import Measured, folders_of, measure


def write(folder: Path, **files: str) -> str:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return str(folder)


def test_the_first_version(tmp_path: Path) -> None:
    cpu = write(tmp_path / "cpu", cpu__stat="nr_periods 3\nnr_throttled 0\n")
    accounted = write(tmp_path / "cpuacct", cpuacct__usage="1234567890\n")
    memory = write(
        tmp_path / "memory", memory__usage_in_bytes="100\n", memory__max_usage_in_bytes="900\n"
    )
    found = measure([memory, cpu, accounted])
    assert found == Measured(cpu_us=1_234_567, memory=100, memory_peak=900)


def test_the_second_version(tmp_path: Path) -> None:
    group = write(tmp_path / "g", cpu__stat="usage_usec 55\nuser_usec 50\n", memory__current="7\n")
    assert measure([group]) == Measured(cpu_us=55, memory=7, memory_peak=7)
    assert measure([str(tmp_path / "gone")]) is None


def test_the_groups_of_a_container(tmp_path: Path) -> None:
    write(tmp_path / "7", cgroup="4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n")
    write(
        tmp_path / "self",
        mountinfo="1 0 0:1 / /c/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "2 0 0:2 / /c/memory rw - cgroup cgroup rw,memory\n",
    )
    assert folders_of(7, "abc", proc=tmp_path) == ["/c/cpu/docker/abc", "/c/memory/docker/abc"]
    assert folders_of(7, "other", proc=tmp_path) == []
