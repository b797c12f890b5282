"""`sandbox cp`: files and folders, in and out."""

import os
from pathlib import Path

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


def test_a_file_there_and_back(sandbox: Program, thread: str) -> None:
    data = os.urandom(300_000)
    (sandbox.folder / "a.bin").write_bytes(data)
    told = sandbox.json("cp", "a.bin", f"{thread}:data/b.bin")
    assert (told["path"], told["size"]) == ("/workspace/data/b.bin", len(data))
    assert sandbox.output("cp", f"{thread}:data/b.bin", "c.bin") == ""
    assert (sandbox.folder / "c.bin").read_bytes() == data


def test_into_folders(sandbox: Program, thread: str) -> None:
    (sandbox.folder / "a.txt").write_text("one")
    (sandbox.folder / "here").mkdir()
    sandbox.output("run", "-t", thread, "mkdir folder; ln -s folder link")
    for target in ("", "new/", "folder", "/tmp", "link"):
        sandbox.output("cp", "a.txt", f"{thread}:{target}")
    places = "a.txt new/a.txt folder/a.txt /tmp/a.txt link/a.txt"
    assert sandbox.output("run", "-t", thread, f"cat {places}") == "one" * 5
    sandbox.output("cp", "a.txt", f"{thread}:new/a.txt")
    sandbox.output("cp", f"{thread}:new/a.txt", "here")
    assert (sandbox.folder / "here" / "a.txt").read_text() == "one"


def make_tree(root: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "deep" / "er" / "ünï code.txt").write_text("text")
    (root / "run.sh").write_text("#!/bin/bash\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("deep/er")


def listing(root: Path) -> list[tuple[str, int, bool]]:
    return sorted(
        (str(path.relative_to(root)), path.lstat().st_mode & 0o777, path.is_symlink())
        for path in root.rglob("*")
    )


def test_a_folder_there_and_back(sandbox: Program, thread: str) -> None:
    tree = sandbox.folder / "tree"
    make_tree(tree)
    sandbox.output("run", "-t", thread, "cd /tmp; x=kept")
    assert sandbox.json("cp", "tree", f"{thread}:")["type"] == "directory"
    assert sandbox.output("run", "-t", thread, "pwd; echo $x; /workspace/tree/run.sh") == (
        "/tmp\nkept\nran\n"
    )
    assert sandbox.output("run", "-t", thread, "ls -A /workspace") == "tree\n"
    sandbox.output("cp", f"{thread}:tree", "back")
    assert listing(sandbox.folder / "back") == listing(tree)
    assert (sandbox.folder / "back" / "link" / "ünï code.txt").read_text() == "text"
    sandbox.output("cp", "tree", f"{thread}:other/name")
    sandbox.output("cp", f"{thread}:other/name", "back")
    assert listing(sandbox.folder / "back" / "name") == listing(tree)


def test_a_folder_with_things_that_lead_out(sandbox: Program, thread: str) -> None:
    trap = "mkdir d; ln -s /etc/passwd d/abs; ln -s ../../x d/up; mkfifo d/pipe; echo 1 > d/file"
    sandbox.output("run", "-t", thread, trap)
    done = sandbox("cp", f"{thread}:d", "d")
    assert done.returncode == 0
    assert sorted(path.name for path in (sandbox.folder / "d").iterdir()) == ["file"]
    pipe = "pipe: it is neither a file, a folder nor a link"
    first, *rest = done.stderr.splitlines()
    assert first.endswith(f"left out: {pipe}")
    assert {line.split()[1] for line in rest} == {"abs", "up"}
    assert sorted(sandbox.json("cp", f"{thread}:d", "e")["left_out"]) == ["abs", pipe, "up"]


def test_errors(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    for args, code in (
        (["nope", f"{thread}:"], 125),
        ([f"{thread}:nope", "."], 125),
        ([f"{thread}:/etc/passwd", "."], 125),
        (["none:x", "."], 125),
        (["x", "y"], 2),
        ([f"{thread}:x", f"{thread}:y"], 2),
    ):
        done = sandbox("cp", *args)
        assert (done.stdout, done.returncode) == ("", code), args
        assert "Traceback" not in done.stderr, args
    assert list(sandbox.folder.iterdir()) == []
