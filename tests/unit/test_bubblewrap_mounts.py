"""A box as bubblewrap's options: what it sees, what it may write, and in which order."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.runtime.bubblewrap import mounts
from sandbox_server.runtime.bubblewrap.mounts import PLACES, SHARED, WARDEN, Layout, Python

STAGED = Layout(
    shared="/stage/shared",
    places={name: f"/stage/{name}" for name in PLACES},
    python=Python(executable="/usr/bin/python3"),
    links={"bin": "usr/bin", "lib": "usr/lib"},
    etc=("/etc/alternatives", "/etc/ssl/certs"),
)
PLAIN = replace(STAGED, places={"workspace": 4096, "home": 3000, "tmp": 2000, "shm": 1000})
FOREIGN = Python(executable="/opt/py/bin/python3.12", prefix="/opt/py")

_ARGUMENTS = {
    **dict.fromkeys(["--ro-bind", "--ro-bind-try", "--bind", "--symlink", "--setenv"], 2),
    **dict.fromkeys(["--uid", "--gid", "--hostname", "--cap-drop", "--chdir", "--remount-ro"], 1),
    **dict.fromkeys(["--proc", "--dev", "--tmpfs", "--size", "--perms", "--dir"], 1),
}


def steps(layout: Layout, env: dict[str, str] | None = None) -> list[list[str]]:
    """The options, each with its arguments."""

    def split(words: Iterator[str]) -> Iterator[list[str]]:
        for word in words:
            assert word.startswith("--"), f"{word} is not an option"
            yield [word, *(next(words) for _ in range(_ARGUMENTS.get(word, 0)))]

    return list(split(iter(mounts.options(layout, env or {}))))


def environment(layout: Layout, env: dict[str, str] | None = None) -> dict[str, str]:
    return {step[1]: step[2] for step in steps(layout, env) if step[0] == "--setenv"}


def test_every_namespace_is_new_and_no_capability_is_left() -> None:
    alone = {step[0] for step in steps(STAGED)}
    assert alone >= {
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--disable-userns",
        "--as-pid-1",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    }
    assert ["--cap-drop", "ALL"] in steps(STAGED)
    assert ["--uid", "1000"] in steps(STAGED)
    assert ["--gid", "1000"] in steps(STAGED)


@pytest.mark.parametrize("layout", [STAGED, PLAIN])
def test_only_the_places_can_be_written(layout: Layout) -> None:
    writable = {step[2] for step in steps(layout) if step[0] in ("--bind", "--dev-bind")}
    writable |= {step[1] for step in steps(layout) if step[0] == "--tmpfs"}
    assert writable == set(PLACES.values())


@pytest.mark.parametrize("layout", [STAGED, PLAIN, replace(STAGED, python=FOREIGN)])
def test_the_root_is_made_read_only_after_everything_else(layout: Layout) -> None:
    found = steps(layout)
    assert found[-3:] == [
        ["--remount-ro", "/dev"],
        ["--remount-ro", "/"],
        ["--chdir", "/workspace"],
    ]
    assert found.index(["--dev", "/dev"]) < next(
        at for at, step in enumerate(found) if step[-1] == "/dev/shm"
    )


def test_a_tmpfs_of_bubblewrap_is_limited_right_before_it_is_made() -> None:
    found = steps(PLAIN)
    at = found.index(["--tmpfs", "/tmp"])
    assert found[at - 2 : at] == [["--perms", "1777"], ["--size", "2000"]]
    assert ["--size", "4096"] in found


def test_nothing_of_the_host_is_bound_but_what_the_layout_names() -> None:
    bound = {step[1] for step in steps(STAGED) if "bind" in step[0]}
    shared = {
        f"/stage/shared/{path.rpartition('/')[2]}" for path in (*SHARED, WARDEN, "save_artifact")
    }
    places = {f"/stage/{name}" for name in PLACES}
    assert bound == {"/usr", "/etc/alternatives", "/etc/ssl/certs", "/proc/sys"} | shared | places


def test_what_tells_of_the_machine_is_covered_after_proc_is_there() -> None:
    layout = replace(STAGED, hidden_files=("/proc/cmdline",), hidden_folders=("/proc/fs",))
    found = steps(layout)
    for name, path in (("empty", "/proc/cmdline"), ("nothing", "/proc/fs")):
        step = ["--ro-bind", f"/stage/shared/{name}", path]
        assert found.index(["--proc", "/proc"]) < found.index(step)


def test_links_of_a_merged_usr_and_real_folders_stay_what_they_are() -> None:
    found = steps(replace(STAGED, links={"bin": "usr/bin"}, folders=("lib64",)))
    assert ["--symlink", "usr/bin", "/bin"] in found
    assert ["--ro-bind", "/lib64", "/lib64"] in found


def test_a_python_outside_of_usr_comes_along_and_first_on_the_path() -> None:
    layout = replace(STAGED, python=FOREIGN, python_source="/stage/python")
    found = steps(layout)
    assert ["--ro-bind", "/stage/python", "/opt/py"] in found
    path = environment(layout)["PATH"].split(":")
    assert path.index("/opt/py/bin") < path.index("/usr/bin")
    assert found.index(["--ro-bind", "/stage/python", "/opt/py"]) > found.index(
        ["--bind", "/stage/tmp", "/tmp"]
    )


def test_python_is_a_command_where_the_host_has_only_python3() -> None:
    link = ["--symlink", "/usr/bin/python3", "/run/sandbox/bin/python"]
    assert link in steps(STAGED)
    assert link not in steps(replace(STAGED, has_python_command=True))


def test_the_environment_is_the_box_s_own_and_the_spec_s() -> None:
    found = environment(STAGED, {"LANG": "de_DE.UTF-8", "TOKEN": "a=b\n c"})
    assert found["LANG"] == "de_DE.UTF-8"
    assert found["TOKEN"] == "a=b\n c"
    assert found["HOME"] == "/home/sandboxuser"
    assert found["USER"] == found["LOGNAME"] == "sandboxuser"


@pytest.mark.parametrize(
    "env", [{"A": "x\0--bind\0/\0/host"}, {"A\0--bind": "x"}, {"A=B": "x"}, {"": "x"}]
)
def test_an_environment_cannot_smuggle_options_in(env: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        mounts.options(STAGED, env)


def test_the_users_of_a_box_are_known_by_name() -> None:
    assert "sandboxuser:x:1000:1000::/home/sandboxuser:/bin/bash\n" in SHARED["/etc/passwd"]
    assert "sandboxuser:x:1000:\n" in SHARED["/etc/group"]
    assert "dns" not in SHARED["/etc/nsswitch.conf"]


def test_no_pattern_of_etc_may_show_a_secret() -> None:
    secrets = {"shadow", "gshadow", "ssh", "pip.conf", "npmrc", "ssl", "ssl/private", "environment"}
    assert not secrets & set(mounts.ETC)


def test_the_warden_is_isolated_from_the_user_s_python_settings() -> None:
    words = mounts.command(STAGED, ["box=b1"], pids=None)
    assert words == ["/usr/bin/python3", "-I", "-S", f"{WARDEN}/start.py", "pid1", "box=b1"]


def test_processes_are_limited_from_inside_where_no_group_does_it() -> None:
    words = mounts.command(STAGED, ["box=b1"], pids=64)
    assert words[:4] == ["bash", "-c", 'ulimit -u 64; exec "$@"', "warden"]
    assert words[4:] == mounts.command(STAGED, ["box=b1"], pids=None)
