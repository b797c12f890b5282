"""What a sandbox has changed, told from three sides; and as patches that git takes."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from sandbox_sdk.mounts.changes import Step, conflict_of, is_of_git, steps
from sandbox_sdk.mounts.entries import Entry
from sandbox_sdk.mounts.text import patch, unified

FOLDER = Entry("directory")


def file(content: str, *, executable: bool = False) -> Entry:
    return Entry("file", executable, sha256=content)


def link(target: str) -> Entry:
    return Entry("symlink", target=target)


def told(base: dict[str, Entry], there: dict[str, Entry]) -> list[tuple[str, str]]:
    return [(step.what, step.path) for step in steps(base, there) if not step.implied]


def test_nothing_has_changed() -> None:
    there = {"a": file("1"), "d": FOLDER, "d/b": link("../a")}
    other_times = {**there, "a": Entry("file", sha256="1", size=9, mode=0o600, mtime_ns=5)}
    assert steps(there, other_times) == []


def test_what_is_told() -> None:
    base = {"same": file("1"), "more": file("1"), "gone": file("1"), "x": file("1"), "l": link("a")}
    there = {
        "same": file("1"), "more": file("2"), "x": file("1", executable=True), "l": link("b"),
        "d": FOLDER, "d/new": file("3"), "empty": FOLDER,
    }  # fmt: skip
    assert sorted(told(base, there)) == [
        ("added", "d/new"), ("added", "empty"), ("changed", "l"), ("changed", "more"),
        ("changed", "x"), ("removed", "gone"),
    ]  # fmt: skip


def test_the_order_in_which_it_can_be_done() -> None:
    """What goes from the bottom up, then folders, files, links."""
    base = {"a": FOLDER, "a/b": FOLDER, "a/b/c": file("1"), "f": file("1")}
    there = {"a": file("2"), "f": FOLDER, "f/g": FOLDER, "f/g/h": file("3"), "f/l": link("g")}
    order = [step.path for step in steps(base, there)]
    assert order == ["a/b/c", "a/b", "f", "f/g", "a", "f/g/h", "f/l"]


def test_folders_that_come_and_go_with_their_files_are_not_told() -> None:
    full = {"a": FOLDER, "a/b": FOLDER, "a/b/c": file("1")}
    assert told({}, full) == [("added", "a/b/c")]
    assert told(full, {}) == [("removed", "a/b/c")]
    assert told({"a": FOLDER}, {}) == [("removed", "a")]


ONE, TWO, THREE = file("1"), file("2"), file("3")


@pytest.mark.parametrize(
    ("before", "after", "here", "conflict"),
    [
        (ONE, TWO, ONE, None),
        (ONE, TWO, TWO, None),
        (ONE, TWO, THREE, "changed here too"),
        (ONE, TWO, None, "removed here"),
        (ONE, TWO, FOLDER, "changed here too"),
        (ONE, TWO, link("/etc/passwd"), "changed here too"),
        (ONE, TWO, file("1", executable=True), "changed here too"),
        (None, TWO, None, None),
        (None, TWO, TWO, None),
        (None, TWO, THREE, "made here too"),
        (ONE, None, ONE, None),
        (ONE, None, None, None),
        (ONE, None, THREE, "changed here too"),
    ],
)
def test_conflicts(
    before: Entry | None, after: Entry | None, here: Entry | None, conflict: str | None
) -> None:
    found = conflict_of(Step("a", before, after), here)
    assert (found or "").startswith(conflict or "\n") == (conflict is not None)


@pytest.mark.parametrize(
    ("path", "git"),
    [
        (".git", True), (".git/config", True), ("a/.git/hooks/x", True), (".GIT/config", True),
        (".gi\u200ct/config", True), ("git~1/config", True), (".git./x", True), (".git /x", True),
        (".gitignore", False), (".github/x", False), ("git", False), ("a.git/x", False),
    ],
)  # fmt: skip
def test_what_is_of_git(path: str, git: bool) -> None:
    assert is_of_git(path) == git


def lines(random_: random.Random, count: int) -> str:
    text = "".join(f"{random_.choice('abcdef')}\n" for _ in range(count))
    return text[:-1] if random_.random() < 0.3 else text


def test_git_takes_the_patches(tmp_path: Path) -> None:
    """Random texts, also without a line break at their end, and empty ones."""
    random_ = random.Random(1)
    texts = [lines(random_, random_.randrange(12)) for _ in range(80)]
    texts += ["", "\n", "a", "a\r\nb\r\n", "a\x0bb\u2028c\n", "ü\n" * 3]
    for number in range(0, len(texts) - 1):
        before, after = texts[number], texts[number + 1]
        if before == after:
            continue
        (tmp_path / "f").write_bytes(before.encode())
        made = patch("f", file("1"), file("2"), before.encode(), after.encode())
        taken = subprocess.run(
            ["git", "apply", "--unidiff-zero", "-"], input=made.encode(), cwd=tmp_path,
            capture_output=True, check=False, env={**os.environ, "GIT_CEILING_DIRECTORIES": "/"},
        )  # fmt: skip
        assert taken.returncode == 0, (before, after, made, taken.stderr)
        assert (tmp_path / "f").read_bytes() == after.encode()


def test_git_takes_files_that_come_and_go_and_modes(tmp_path: Path) -> None:
    run = Entry("file", executable=True, sha256="1")
    (tmp_path / "old").write_text("old\n")
    (tmp_path / "mode").write_text("same\n")
    whole = (
        patch("new", None, run, None, b"#!/bin/sh\n")
        + patch("old", file("1"), None, b"old\n", None)
        + patch("mode", file("1"), run, b"same\n", b"same\n")
        + patch("link", None, link("new"), None, b"new")
    )
    subprocess.run(["git", "apply", "-"], input=whole.encode(), cwd=tmp_path, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "mode", "new"]
    assert [(tmp_path / n).stat().st_mode & 0o111 for n in ("new", "mode")] == [0o111, 0o111]
    assert os.readlink(tmp_path / "link") == "new"


def test_what_is_no_text_is_one_line() -> None:
    binary = "Binary files a/f and b/f differ\n"
    for data in (b"\0", b"\xff\xfe", b"a\n" * (1 << 20)):
        made = patch("f", ONE, TWO, b"text\n", data)
        assert made == f"diff --git a/f b/f\n{binary}"
    assert patch("d", FOLDER, ONE, b"", b"x") == "# d: a folder becomes a file\n"


def test_a_name_stays_on_one_line() -> None:
    made = patch("a\n+++ b/evil\x1b", None, ONE, None, b"x\n")
    assert made.splitlines()[0] == r"diff --git a/a\n+++ b/evil\x1b b/a\n+++ b/evil\x1b"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("count", [500, 50_000])
def test_texts_that_are_meant_to_take_long(count: int) -> None:
    """Every other line is the same: to find each, difflib looks at all that follow."""
    one, other = ("".join(f"{n}\n{kind}{n}\n" for n in range(count)) for kind in "ab")
    began = time.monotonic()
    made = unified("f", one, other)
    assert time.monotonic() - began < 10
    assert made.count("\n-") >= count
