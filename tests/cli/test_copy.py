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


def test_copies_that_build_on_each_other(sandbox: Program, thread: str) -> None:
    """Harmless one by one, a way out together: a file three levels up was overwritten."""
    here = sandbox.folder / "1" / "2" / "3"
    here.mkdir(parents=True)
    outside = sandbox.folder / "1" / "x"
    outside.write_text("mine")
    step = Program(sandbox.env, here)
    for trap in ("ln -s d/d/d/../../../x l", "ln -s . d", "echo theirs > l"):
        step.output("run", "-t", thread, f"rm -rf o; mkdir o; cd o; {trap}; cd ..")
        assert step("cp", f"{thread}:o", ".").returncode == 0
    assert outside.read_text() == "mine"
    assert (here / "o" / "l").read_text() == "theirs\n"


def test_links_of_the_user(sandbox: Program, thread: str) -> None:
    """What was typed is followed, what the sandbox names is not."""
    sandbox.output("run", "-t", thread, "mkdir o; echo new | tee o/f > f")
    real = sandbox.folder / "real"
    real.mkdir()
    (real / "f").write_text("mine")
    for name, target in (("link", "real"), ("o", "real"), ("f", "real/f")):
        (sandbox.folder / name).symlink_to(target)
    sandbox.output("cp", f"{thread}:o", ".")
    sandbox.output("cp", f"{thread}:f", "f")
    assert (real / "f").read_text() == "mine"
    assert [(sandbox.folder / name).is_symlink() for name in ("o", "f")] == [False, False]
    sandbox.output("cp", f"{thread}:o", "link")
    assert (real / "o" / "f").read_text() == "new\n"
    (real / "out").symlink_to("../secret")
    sandbox.output("cp", "link", f"{thread}:back")
    assert sandbox.output("run", "-t", thread, "cat back/o/f; readlink back/out") == (
        "new\n../secret\n"
    )


def test_errors(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    for args, code in (
        (["nope", f"{thread}:"], 125),
        ([f"{thread}:nope", "."], 125),
        ([f"{thread}:/proc/1/environ", "."], 125),
        (["nope", f"{thread}:/etc/"], 125),
        (["none:x", "."], 125),
        (["x", "y"], 2),
        ([f"{thread}:x", f"{thread}:y"], 2),
    ):
        done = sandbox("cp", *args)
        assert (done.stdout, done.returncode) == ("", code), args
        assert "Traceback" not in done.stderr, args
    assert list(sandbox.folder.iterdir()) == []
