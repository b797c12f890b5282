"""Folders of this machine in sandboxes that this process makes."""

import os
import threading
import time
from pathlib import Path

import pytest

from sandbox_sdk import SandboxClient
from sandbox_sdk.mounts.bases import KEPT_S, Bases
from tests.sdk.conftest import Home


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    (folder / "b").write_text("1\n")
    return folder


def records(home: Home) -> list[str]:
    folder = home.folder / "mounts"
    return [path.name for path in folder.glob("*") if path.is_dir()]


def test_a_sandbox_of_its_own(home: Home, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is meant from where the program is when it says so."""
    monkeypatch.chdir(repo.parent)
    with SandboxClient(mounts={"./repo": "repo", str(repo): "again"}) as sandbox:
        monkeypatch.chdir("/")
        sandbox.execute("echo 2 > repo/a; echo 3 > again/b", check=True)
        patch = str(sandbox.diff())
        assert patch.count("diff --git") == 2
        assert [each.path for each in sandbox.apply().changes] == ["b", "a"], "again, repo"
        assert len(records(home)) == 2
    assert [(repo / name).read_text() for name in "ab"] == ["2\n", "3\n"]
    assert records(home) == [], "nothing is kept of a sandbox that nobody can come back to"


def test_restart_and_cleanup_copy_anew(home: Home, repo: Path) -> None:
    with SandboxClient("t", mounts={repo: "repo"}) as sandbox:
        sandbox.execute("echo 2 > repo/a", check=True)
        sandbox.restart()
        assert sandbox.execute("cat repo/a").output == "1\n"
        (repo / "a").write_text("newer\n")
        sandbox.cleanup()
        assert sandbox.execute("cat repo/a").output == "newer\n"
        assert sandbox.diff().changes == []


def test_checkpoints_and_forks_have_the_copy(home: Home, repo: Path) -> None:
    with SandboxClient("t", mounts={repo: "repo"}) as sandbox:
        sandbox.execute("echo 2 > repo/a", check=True)
        before = sandbox.checkpoint()
        (fork,) = sandbox.fork(1)
        with fork:
            fork.execute("echo fork > repo/b", check=True)
            assert [each.path for each in sandbox.apply().changes] == ["a"]
            assert [each.path for each in fork.apply().changes] == ["b"]
            assert fork.diff().changes == []
            sandbox.execute("echo 3 > repo/a", check=True)
            sandbox.apply()
            fork.execute("echo other > repo/a", check=True)
            (told,) = fork.apply().changes
            assert told.conflict == "changed here too since it was copied"
            fork.cleanup()
        assert (repo / "a").read_text() == "3\n"
        sandbox.rewind(before)
        assert [each.path for each in sandbox.apply().changes] == ["a"]
    assert [(repo / name).read_text() for name in "ab"] == ["2\n", "fork\n"]


def test_what_was_applied_is_not_told_as_newer(
    home: Home, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SandboxClient("t", mounts={repo: "repo"}) as sandbox:
        sandbox.execute("echo 2 > repo/a; chmod +x repo/b; echo 3 > repo/c", check=True)
        sandbox.apply()
    with SandboxClient("t", mounts={repo: "repo"}) as sandbox:
        sandbox.execute("true")
    assert caplog.text == ""


@pytest.mark.timeout(120)
def test_a_box_that_changes_all_the_time(home: Home, repo: Path, tmp_path: Path) -> None:
    """Links and files take each other's places while they are read: nothing gets out."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("mine")
    (repo / "d").mkdir()
    (repo / "d" / "x").write_text("1\n")
    with SandboxClient("t", mounts={repo: "repo"}) as sandbox:
        swaps = (
            f"cd repo; while :; do rm -rf d; ln -s {tmp_path}/outside d; rm -f d; mkdir d;"
            " echo theirs > d/x; ln -sf ../../outside/x a; rm -f a; echo $RANDOM > a; done"
        )
        process = sandbox.start(swaps)
        stop = threading.Event()

        def swap_here() -> None:
            while not stop.is_set():
                (repo / "d").rename(tmp_path / "was") if (repo / "d").is_dir() else None
                (repo / "d").symlink_to(tmp_path / "outside")
                (repo / "d").unlink()
                if (tmp_path / "was").exists() and not (repo / "d").exists():
                    (tmp_path / "was").rename(repo / "d")

        swapper = threading.Thread(target=_ignoring_errors, args=(swap_here, stop))
        swapper.start()
        ended = time.monotonic() + 8
        while time.monotonic() < ended:
            sandbox.apply(force=True)
        stop.set()
        swapper.join()
        process.kill()
    assert (tmp_path / "outside" / "x").read_text() == "mine"
    assert os.listdir(tmp_path / "outside") == ["x"]
    assert [p.name for p in repo.iterdir() if p.name.endswith(".part")] == []


def _ignoring_errors(work: object, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            work()  # type: ignore[operator]
        except OSError:
            continue


def test_records_that_nobody_uses_go(home: Home, repo: Path) -> None:
    with SandboxClient("t", mounts={repo: "repo"}) as sandbox:
        sandbox.execute("true")
        (mine,) = records(home)
        assert (home.folder / "mounts" / mine).stat().st_mode & 0o077 == 0
        Bases().prune(time.time() + KEPT_S - 60)
        assert records(home) == [mine]
        Bases().prune(time.time() + KEPT_S + 60)
        assert records(home) == []


@pytest.mark.parametrize("name", ["../../x", "x" * 32, "..", "0" * 31, "0" * 32])
def test_ids_that_a_sandbox_makes_up(home: Home, name: str) -> None:
    assert Bases().load(name, "t") is None
