"""`sandbox run --mount`, `sandbox diff` and `sandbox apply`, on a server."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


@pytest.fixture
def repo(sandbox: Program) -> Path:
    folder = sandbox.folder / "repo"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / "b.txt").write_text("one\n")
    return folder


def test_there_and_back(sandbox: Program, thread: str, repo: Path) -> None:
    sandbox.output("run", "-t", thread, "-m", "repo", "echo two >> repo/a.txt; rm repo/b.txt")
    patch = sandbox.output("diff", thread)
    assert "--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,2 @@\n one\n+two\n" in patch
    assert sandbox.output("diff", thread, "--stat") == "M repo/a.txt\nD repo/b.txt\n"
    assert sandbox.output("apply", thread, "--dry-run") == "M repo/a.txt\nD repo/b.txt\n"
    assert (repo / "b.txt").exists()
    assert sandbox.output("apply", thread) == "M repo/a.txt\nD repo/b.txt\n"
    assert (repo / "a.txt").read_text() == "one\ntwo\n"
    assert not (repo / "b.txt").exists()
    assert sandbox.output("diff", thread) == sandbox.output("apply", thread) == ""
    assert sandbox.json("diff", thread) == {"changes": [], "left_out": []}


def test_the_patch_is_one(sandbox: Program, thread: str, repo: Path) -> None:
    write = "cd app; printf '\\303\\274\\033[2J' > a.txt; touch new; chmod +x b.txt; ln -s new l"
    sandbox.output("run", "-t", thread, "--mount", "repo:app", write)
    patch = sandbox.output("diff", thread)
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=repo, check=True)
    assert sandbox.output("diff", thread) == ""
    assert (repo / "a.txt").read_text() == "ü\033[2J"
    assert (repo / "l").readlink() == Path("new")
    sandbox.output("run", "-t", thread, "echo '\033]0;title\007' > /workspace/app/a.txt")
    with sandbox.terminal("diff", thread) as terminal:
        terminal.expect(r"+\x1b]0;title\x07")
        assert terminal.wait() == 0


def test_conflicts(sandbox: Program, thread: str, repo: Path) -> None:
    change = "cd repo; echo theirs | tee a.txt > b.txt; ln -s /etc/passwd out"
    sandbox.output("run", "-t", thread, "-m", f"{repo}:repo", change)
    (repo / "a.txt").write_text("mine\n")
    told = sandbox("diff", thread, "--stat")
    assert (told.returncode, told.stdout) == (0, "M repo/b.txt\n")
    done = sandbox("apply", thread)
    assert (done.returncode, done.stdout) == (1, "M repo/b.txt\n")
    assert (
        done.stderr
        == told.stderr
        == (
            "sandbox: conflict: repo/a.txt: changed here too since it was copied\n"
            "sandbox: left out: out: a link that leads out of the folder\n"
        )
    )
    assert (repo / "a.txt").read_text() == "mine\n"
    assert sandbox("apply", thread, "--json").returncode == 1
    assert sandbox("apply", thread, "--force").stdout == "M repo/a.txt\n"
    assert (repo / "a.txt").read_text() == "theirs\n"
    assert not (repo / "out").is_symlink()


def git(*args: str, cwd: Path) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    done = subprocess.run(["git", *who, *args], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout


def test_commits_come_back_as_a_bundle(sandbox: Program, thread: str, repo: Path) -> None:
    """As docs/mounts.md says. Hooks and configuration of the sandbox's repository do not."""
    git("init", "--quiet", cwd=repo)
    git("add", ".", cwd=repo)
    git("commit", "--quiet", "-m", "first", cwd=repo)
    assert sandbox.output("run", "-t", thread, "-m", "repo", "git -C repo status --short") == ""
    commit = (
        "cd repo; echo two >> a.txt;"
        " git -c user.name=it -c user.email=it@localhost commit --quiet -a -m second;"
        " git bundle create --quiet ../work.bundle HEAD;"
        " git config core.fsmonitor evil; echo evil > .git/hooks/pre-push"
    )
    sandbox.output("run", "-t", thread, commit)
    done = sandbox("apply", thread)
    assert (done.returncode, done.stdout) == (0, "M repo/a.txt\n")
    assert "left out: .git: it stays in the sandbox" in done.stderr
    assert not (repo / ".git" / "hooks" / "pre-push").exists()
    assert "evil" not in (repo / ".git" / "config").read_text()
    sandbox.output("cp", f"{thread}:work.bundle", ".")
    git("fetch", "--quiet", "../work.bundle", cwd=repo)
    assert git("log", "--format=%s", "FETCH_HEAD", cwd=repo) == "second\nfirst\n"
    assert git("diff", "FETCH_HEAD", cwd=repo) == ""


def test_mistakes(sandbox: Program, thread: str, repo: Path) -> None:
    for args, told in (
        (["diff", thread], "has no session"),
        (["apply", thread], "has no session"),
        (["run", "-m", "none", "true"], "'none' is no folder of this machine"),
        (["run", "-m", "repo:/etc", "true"], "'/etc' is not in /workspace"),
        (["shell", "-m", "repo:/etc"], "'/etc' is not in /workspace"),
    ):
        done = sandbox(*args)
        assert (done.returncode, done.stdout) == (125, ""), args
        assert told in done.stderr, args
    sandbox.output("run", "-t", thread, "true")
    assert "no copy of a folder of this machine" in sandbox("diff", thread).stderr


def test_the_folder_itself(alone: Program, sandbox: Program, thread: str, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    (folder / "a").write_text("here\n")
    os.chown(folder / "a", 1000, 1000)
    mount = ("--mount", f"{folder}:/workspace/there:rw")
    assert alone.output("run", *mount, "cat there/a; echo back > there/b") == "here\n"
    assert (folder / "b").read_text() == "back\n"
    assert (folder / "b").stat().st_uid == 1000
    reads = ("--mount", f"{folder}:ro")
    assert "Read-only file system" in alone("run", *reads, "cat own/b; rm own/b").stderr
    refused = sandbox("run", "-t", thread, *mount, "true")
    assert (refused.returncode, "does not see this machine" in refused.stderr) == (125, True)
