"""Folders of the caller's machine: copied, changed there, and brought back; over every way in."""

import asyncio
import os
from pathlib import Path

import pytest

from sandbox_sdk import (
    AsyncSandboxClient,
    DiskFull,
    FileMissing,
    FileTooLarge,
    InvalidPath,
    InvalidRequest,
    NotFound,
    SessionNotFound,
)
from sandbox_sdk.mounts import bases, copying, methods
from sandbox_sdk.protocol.models import ListResult, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .stand import LIMITS, Place

pytestmark = [pytest.mark.usefixtures("sandboxes"), pytest.mark.wire]

PLACE = "/workspace/repo"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bases, "state_folder", lambda: tmp_path / "state")
    folder = tmp_path / "repo"
    (folder / "src" / "empty").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "src" / "main.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/bash\necho ran\n")
    (folder / "run.sh").chmod(0o775)
    os.utime(folder / "run.sh", ns=(10**18, 10**18 + 123_456_000))
    (folder / "link").symlink_to("src/main.py")
    (folder / "out").symlink_to("/etc/passwd")
    return folder


def client(sandboxes: Sandboxes, thread: str, repo: Path | None) -> AsyncSandboxClient:
    mounts = None if repo is None else {repo: PLACE}
    return AsyncSandboxClient(thread, backend=sandboxes, mounts=mounts)


async def output(sandbox: AsyncSandboxClient, command: str) -> str:
    return (await sandbox.execute(command, check=True)).output


@pytest.mark.seam
async def test_there_and_back(sandboxes: Sandboxes, repo: Path) -> None:
    async with client(sandboxes, "there", repo) as sandbox:
        seen = await output(
            sandbox,
            "pwd; ls -A; cd repo; ./run.sh; find . | sort | xargs; readlink link out;"
            " stat -c '%a %Y %n' run.sh; cat .git/HEAD; id -un; stat -c %U run.sh",
        )
        whole = ". ./.git ./.git/HEAD ./link ./out ./run.sh ./src ./src/empty ./src/main.py"
        assert seen == (
            f"/workspace\nrepo\nran\n{whole}\nsrc/main.py\n/etc/passwd\n775 1000000000 run.sh\n"
            "ref: refs/heads/main\nsandboxuser\nsandboxuser\n"
        )
        assert (await sandbox.diff()).changes == []
        await output(sandbox, "echo 'print(2)' > src/main.py; rm run.sh; mkdir t; echo 1 > t/n")
        found = await sandbox.diff()
        assert [(each.change, each.path) for each in found.changes] == [
            ("removed", "run.sh"), ("changed", "src/main.py"), ("added", "t/n"),
        ]  # fmt: skip
        assert (
            "--- a/src/main.py\n+++ b/src/main.py\n@@ -1,1 +1,1 @@\n-print(1)\n+print(2)\n"
            in str(found)
        )
        assert (repo / "run.sh").exists(), "nothing happens before it is applied"
        assert (await sandbox.apply(dry_run=True)).changes == found.changes
        assert (repo / "run.sh").exists()
        assert (await sandbox.apply()).changes == found.changes
        assert (await sandbox.diff()).changes == []
    assert (repo / "src" / "main.py").read_text() == "print(2)\n"
    assert (repo / "t" / "n").read_text() == "1\n"
    assert sorted(os.listdir(repo)) == [".git", "link", "out", "src", "t"]


async def test_a_program_that_is_run_again(
    sandboxes: Sandboxes, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on with the copy, is told what is newer here, and nothing of both is lost."""
    async with client(sandboxes, "again", repo) as sandbox:
        await output(sandbox, "echo theirs > repo/run.sh; echo new > repo/new")
    caplog.clear()
    async with client(sandboxes, "again", repo) as sandbox:
        assert await output(sandbox, "cat repo/run.sh") == "theirs\n"
    assert caplog.text == ""
    (repo / "run.sh").write_text("mine\n")
    (repo / "added").write_text("mine\n")
    (repo / "src" / "main.py").unlink()
    async with client(sandboxes, "again", repo) as sandbox:
        assert await output(sandbox, "cat repo/run.sh repo/src/main.py") == "theirs\nprint(1)\n"
        assert "goes on with its copy: added, run.sh, src/main.py;" in caplog.text
        done = await sandbox.apply()
        assert {each.path: bool(each.conflict) for each in done.changes} == {
            "new": False, "run.sh": True,
        }  # fmt: skip
        assert (repo / "run.sh").read_text() == "mine\n"
        assert [each.path for each in (await sandbox.apply(force=True)).changes] == ["run.sh"]
    assert (repo / "run.sh").read_text() == "theirs\n"
    assert (repo / "added").read_text() == "mine\n"
    assert not (repo / "src" / "main.py").exists()


async def test_other_clients_of_the_thread(sandboxes: Sandboxes, repo: Path) -> None:
    """Who did not ask for the mount can bring it back, as the command line does."""
    async with client(sandboxes, "others", repo) as sandbox:
        await output(sandbox, "echo 1 > repo/new")
    async with client(sandboxes, "others", None) as other:
        assert [each.path for each in (await other.apply()).changes] == ["new"]
    async with client(sandboxes, "none", None) as none:
        with pytest.raises(SessionNotFound):
            await none.diff()
        await none.execute("true")
        with pytest.raises(NotFound, match="no copy of a folder of this machine"):
            await none.diff()


async def test_a_lost_box_removes_nothing_here(
    sandboxes: Sandboxes, repo: Path, stand: Place
) -> None:
    """The thread goes on with an empty box: that is not a sandbox that has removed everything."""
    async with client(sandboxes, "lost", repo) as sandbox:
        await output(sandbox, "ls repo")
        await stand.lose_box("lost")
        assert (await sandbox.execute("ls")).output == ""
        with pytest.raises(NotFound):
            await sandbox.apply(force=True)
        assert (repo / "run.sh").exists()
        await sandbox.create_session()
        assert await output(sandbox, "./repo/run.sh") == "ran\n"
        assert (await sandbox.diff()).changes == []


async def test_a_copy_that_was_not_finished_is_begun_anew(
    sandboxes: Sandboxes, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program leaves it that is killed: its session lives, with half of the files."""

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    thread = Target(thread_id="half")
    await sandboxes.list_files(thread)  # So that the session is not this client's to end.
    with monkeypatch.context() as patch:
        patch.setattr(copying, "send_archive", killed)
        async with client(sandboxes, "half", repo) as first:
            with pytest.raises(KeyboardInterrupt):
                await first.execute("true")
    left: ListResult = await sandboxes.list_files(thread, path=copying.MARKS)
    assert [each.name[:8] for each in left.entries] == ["copying-"]
    async with client(sandboxes, "half", None) as other:
        with pytest.raises(NotFound):
            await other.diff()
    async with client(sandboxes, "half", repo) as sandbox:
        assert await output(sandbox, "./repo/run.sh") == "ran\n"
        assert (await sandbox.diff()).changes == []


async def test_several_programs_begin_at_once(
    sandboxes: Sandboxes, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them copies, the others wait for it."""

    async def begin(name: str) -> None:
        async with client(sandboxes, "at-once", repo) as sandbox:
            await output(sandbox, f"./repo/run.sh > repo/{name}")

    await asyncio.gather(*(begin(name) for name in "abcd"))
    marks = await sandboxes.list_files(Target(thread_id="at-once"), path=copying.MARKS)
    assert len(marks.entries) == 1
    assert caplog.text == ""
    async with client(sandboxes, "at-once", None) as sandbox:
        assert [each.path for each in (await sandbox.apply()).changes] == ["a", "b", "c", "d"]
    assert {(repo / name).read_text() for name in "abcd"} == {"ran\n"}


async def test_a_place_with_other_files(
    sandboxes: Sandboxes, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(sandboxes, "taken", None) as sandbox:
        await output(sandbox, "mkdir repo; echo mine > repo/run.sh")
    async with client(sandboxes, "taken", repo) as sandbox:
        assert await output(sandbox, "cat repo/run.sh") == "mine\n"
        assert "was not copied: thread taken has other files in /workspace/repo" in caplog.text


async def test_a_whole_workspace_and_large_folders(
    sandboxes: Sandboxes, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In several uploads; a file that no upload can carry is told, and is not removed here."""
    for number in range(5):
        (repo / f"{number}.bin").write_bytes(os.urandom(3 << 20))
    (repo / "large").write_bytes(bytes(LIMITS.upload_limit_bytes + 1))
    os.mkfifo(repo / "pipe")
    sandbox = AsyncSandboxClient("whole", backend=sandboxes, mounts={repo: "/workspace"})
    async with sandbox:
        assert (await output(sandbox, "ls -A")).split() == [
            ".git", "0.bin", "1.bin", "2.bin", "3.bin", "4.bin", "link", "out", "run.sh", "src",
        ]  # fmt: skip
        assert "large: larger than an upload may be" in caplog.text
        assert "pipe: neither a file" in caplog.text
        await output(sandbox, "rm 3.bin; mkfifo 4; cp 1.bin 2.bin")
        done = await sandbox.apply()
        assert [(each.change, each.path) for each in done.changes] == [
            ("changed", "2.bin"), ("removed", "3.bin"),
        ]  # fmt: skip
        assert done.left_out == ["4: it is neither a file, a folder nor a link"]
    assert (repo / "1.bin").read_bytes() == (repo / "2.bin").read_bytes()
    assert (repo / "large").exists()
    assert (repo / "pipe").exists()


async def test_a_folder_that_is_too_large_for_the_disk(sandboxes: Sandboxes, repo: Path) -> None:
    with (repo / "huge").open("wb") as file:
        file.truncate(LIMITS.disk_bytes + 1)
    async with client(sandboxes, "huge", repo) as sandbox:
        with pytest.raises(DiskFull, match="limits="):
            await sandbox.execute("true")
        with pytest.raises(SessionNotFound):
            await sandboxes.session(Target(thread_id="huge"))
        (repo / "huge").unlink()
        assert await output(sandbox, "./repo/run.sh") == "ran\n"


async def test_more_comes_back_than_there_is_room_for(
    sandboxes: Sandboxes, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "MAX_RETURNED", 1 << 20)
    async with client(sandboxes, "much", repo) as sandbox:
        await output(sandbox, "cd repo; rm run.sh; truncate -s 100M holes")
        with pytest.raises(FileTooLarge, match="more than 1 MiB"):
            await sandbox.apply(force=True)
        assert (repo / "run.sh").exists()
        await output(sandbox, "rm holes")
        assert [each.path for each in (await sandbox.apply()).changes] == ["run.sh"]


async def test_a_folder_that_is_gone(sandboxes: Sandboxes, repo: Path) -> None:
    """In the sandbox as a whole, or here: neither is taken for what somebody wanted."""
    async with client(sandboxes, "gone", repo) as sandbox:
        await output(sandbox, "mv repo away")
        with pytest.raises(FileMissing, match="/workspace/repo"):
            await sandbox.apply(force=True)
        await output(sandbox, "echo > repo")
        with pytest.raises(InvalidPath, match="no folder any more"):
            await sandbox.apply(force=True)
        await output(sandbox, "rm repo; mv away repo; rm repo/run.sh")
        repo.rename(repo.with_name("elsewhere"))
        with pytest.raises(FileMissing, match="no folder of this machine now"):
            await sandbox.apply()
        assert not repo.exists()
    assert (repo.with_name("elsewhere") / "run.sh").exists()


def test_places_that_cannot_be(repo: Path, tmp_path: Path) -> None:
    for mounts, why in (
        ({repo: "/etc"}, "not in /workspace"),
        ({repo: "../x"}, "not in /workspace"),
        ({repo: "/workspace/../tmp"}, "not in /workspace"),
        ({repo: "/home/sandboxuser/x"}, "not in /workspace"),
        ({tmp_path / "none": "x"}, "no folder of this machine"),
        ({repo / "run.sh": "x"}, "no folder of this machine"),
        ({repo: "x", repo / "src": "x/y"}, "where another folder is"),
        ({repo: ".", repo / "src": "y"}, "where another folder is"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            AsyncSandboxClient(mounts=mounts)
    with pytest.raises(InvalidRequest, match="it has its mounts"):
        AsyncSandboxClient(session_id="s", mounts={repo: "x"})
