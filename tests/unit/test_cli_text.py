"""What the command line reads out of what is typed."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandbox_sdk.cli.copy import Place
from sandbox_sdk.cli.lines import is_complete
from sandbox_sdk.cli.ps import span
from sandbox_sdk.cli.run import split_file
from sandbox_sdk.cli.unpack import unpack
from sandbox_sdk.protocol.errors import InvalidPath


@pytest.mark.parametrize(
    ("text", "thread", "path"),
    [
        ("t:out.csv", "t", "out.csv"),
        ("t:", "t", ""),
        ("t:/tmp/x", "t", "/tmp/x"),
        ("user:42:dir/x", "user:42", "dir/x"),
        ("t:./a:b", "t", "./a:b"),
        ("t:dir/a:b", "t", "dir/a:b"),
        ("local.txt", "", "local.txt"),
        ("./a:b", "", "./a:b"),
        ("/tmp/a:b", "", "/tmp/a:b"),
        (":x", "", ":x"),
    ],
)
def test_which_end_of_a_copy(text: str, thread: str, path: str) -> None:
    assert Place.of(text) == Place(thread, path)


def test_local_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").touch()
    assert split_file("dir/x.txt") == ("dir/x.txt", "x.txt")
    assert split_file("dir/x.txt:y/z") == ("dir/x.txt", "y/z")
    assert split_file("x.txt:/tmp/y") == ("x.txt", "/tmp/y")
    assert split_file("a:b") == ("a:b", "a:b")


@pytest.mark.parametrize(
    "text",
    [
        "echo 'one",
        'echo "one',
        "if true; then",
        "while read x; do echo",
        "f() {",
        "cat <<END\nline",
        "echo one |",
        "true &&",
        "echo $(date",
        "echo one \\",
        "case x in",
        "a=(1 2",
    ],
)
def test_bash_would_wait_for_more(text: str) -> None:
    assert not is_complete(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "echo one",
        "if true; then echo; fi",
        "cat <<END\nline\nEND",
        "echo 'one\ntwo'",
        "echo )",
        "echo one \\\\",
        "rm -rf / --no-preserve-root # never run here",
        "# a comment with ' in it",
    ],
)
def test_bash_would_run_it_or_complain(text: str) -> None:
    assert is_complete(text)


def test_asking_bash_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    assert is_complete(f"touch {witness}; $(touch {witness}); `touch {witness}`")
    assert not witness.exists()


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3s"), (300, "5min"), (5400, "1.5h")])
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def member(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def packed(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for each in members:
            tar.addfile(each, io.BytesIO(bytes(each.size)) if each.isreg() else None)
    return path


LINK, HARD, PIPE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


@pytest.mark.parametrize(
    "members",
    [
        [member("../out", size=1)],
        [member("a/../../out", size=1)],
        [member("l", type=LINK, linkname="d"), member("l/out", type=LINK, linkname="x")],
    ],
)
def test_an_archive_that_tries_to_get_out(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    archive = packed(tmp_path / "a.tar", *members)
    with pytest.raises(InvalidPath):
        unpack(archive, tmp_path / "target" / "here")
    assert [path for path in tmp_path.rglob("*") if path.name in ("out", "here")] == []
    assert list((tmp_path / "target").iterdir()) == []


def test_what_is_left_out(tmp_path: Path) -> None:
    members = [
        member("up", type=LINK, linkname="../.."),
        member("root", type=LINK, linkname="/etc"),
        member("hard", type=HARD, linkname="file"),
        member("pipe", type=PIPE),
        member("file", size=3, mode=0o755),
        member("inside", type=LINK, linkname="file"),
    ]
    here = tmp_path / "here"
    left_out = unpack(packed(tmp_path / "a.tar", *members), here)
    assert sorted(left_out) == ["hard", "pipe", "root", "up"]
    assert sorted(os.listdir(here)) == ["file", "inside"]
    assert (here / "file").stat().st_mode & 0o777 == 0o755


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A link comes first and a file below it second: the file gets a folder of its own."""
    members = [member("l", type=LINK, linkname="d"), member("d/x", size=1), member("l/y", size=1)]
    with pytest.raises(InvalidPath):
        unpack(packed(tmp_path / "a.tar", *members), tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_links_that_lead_out_by_way_of_others(tmp_path: Path) -> None:
    members = [
        member("out", type=LINK, linkname="a/b/c/../../../x"),
        member("a/b/c", type=LINK, linkname="../../s"),
        member("round", type=LINK, linkname="round"),
        member("nowhere", type=LINK, linkname="nothing/here"),
        member("s", type=tarfile.DIRTYPE, mode=0o755),
    ]
    here = tmp_path / "here"
    assert sorted(unpack(packed(tmp_path / "a.tar", *members), here)) == ["out", "round"]
    assert sorted(os.listdir(here)) == ["a", "nowhere", "s"]


def test_a_folder_that_is_there_is_filled(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "old").write_text("old")
    unpack(packed(tmp_path / "a.tar", member("new", size=1)), here)
    assert sorted(os.listdir(here)) == ["new", "old"]
